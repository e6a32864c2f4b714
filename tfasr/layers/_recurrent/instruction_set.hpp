// Which instruction sets there are, what each offers, and which of them this processor has.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "normalisation.hpp"
#include "problem.hpp"

// GCC and Clang compile single functions for other processors than the rest.
#if defined(__x86_64__) && defined(__GNUC__)
#define RECURRENT_X86
#endif
// Tiles came with GCC 11 and Clang 12, and Linux has to be asked for them.
#if defined(RECURRENT_X86) && defined(__linux__)
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define RECURRENT_AMX
#endif
#endif

namespace recurrent {

struct InstructionSet {
  const char* name;
  bool (*runs_here)();
  void (*forward_float)(Cell, const Forward<float>&, int threads);
  void (*forward_bfloat16)(Cell, const Forward<Bfloat16>&, int threads);
  void (*backward_float)(Cell, const Backward<float>&, int threads);
  void (*backward_bfloat16)(Cell, const Backward<Bfloat16>&, int threads);
  void (*normalise_float)(const NormaliseForward<float>&, int threads);
  void (*normalise_bfloat16)(const NormaliseForward<Bfloat16>&, int threads);
  void (*normalise_back_float)(const NormaliseBackward<float>&, int threads);
  void (*normalise_back_bfloat16)(const NormaliseBackward<Bfloat16>&, int threads);
};

// Each is defined in the source of its name.
extern const InstructionSet k_portable, k_emulated_amx;
#ifdef RECURRENT_X86
extern const InstructionSet k_avx2, k_avx512, k_avx512bf16;
#endif
#ifdef RECURRENT_AMX
extern const InstructionSet k_amx;
#endif

// From the best to the worst. The last two run everywhere: "portable", and "emulated_amx", which is
// there for tests alone.
inline std::vector<const InstructionSet*> instruction_sets_here() {
  std::vector<const InstructionSet*> found;
#ifdef RECURRENT_AMX
  if (k_amx.runs_here()) found.push_back(&k_amx);
#endif
#ifdef RECURRENT_X86
  for (const InstructionSet* set : {&k_avx512bf16, &k_avx512, &k_avx2}) {
    if (set->runs_here()) found.push_back(set);
  }
#endif
  found.push_back(&k_portable);
  if (k_emulated_amx.runs_here()) found.push_back(&k_emulated_amx);
  return found;
}

// The instruction set of a name; `what` was to name it.
inline const InstructionSet& named(const std::string& name, const std::string& what) {
  std::string known;
  for (const InstructionSet* set : instruction_sets_here()) {
    if (name == set->name) return *set;
    known += (known.empty() ? "" : ", ") + std::string(set->name);
  }
  throw std::invalid_argument(what + " must be one of this processor's, " + known +
                              ". Received: " + name);
}

// What is taken where a call names none: this processor's best, or the one that the environment
// names, so that a slower processor's can be measured on a faster one.
inline const InstructionSet& chosen_set() {
  static const InstructionSet& chosen = []() -> const InstructionSet& {
    const char* variable = std::getenv("TFASR_INSTRUCTION_SET");
    if (variable == nullptr || *variable == '\0') return *instruction_sets_here().front();
    return named(variable, "The environment variable TFASR_INSTRUCTION_SET");
  }();
  return chosen;
}

}  // namespace recurrent
