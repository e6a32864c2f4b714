// The instruction sets with kernels, what each computes, and which of them this processor has.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "ctc.hpp"
#include "normalisation.hpp"
#include "problem.hpp"

// Only GCC and Clang can compile some functions for other processors than the rest.
#if defined(__x86_64__) && defined(__GNUC__)
#define RECURRENT_X86
#endif
// Tiles (AMX) need GCC 11 or Clang 12, and Linux must grant them to the process.
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
  void (*ctc)(const Ctc&, int threads);
};

// Each is defined in the source file of its name.
extern const InstructionSet k_portable, k_emulated_amx;
#ifdef RECURRENT_X86
extern const InstructionSet k_avx2, k_avx512, k_avx512bf16;
#endif
#ifdef RECURRENT_AMX
extern const InstructionSet k_amx;
#endif

// Returns the instruction sets that run on this processor, from the fastest to the slowest. Two run
// everywhere and come last: "portable" and "emulated_amx", which is only for tests.
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

// Returns the instruction set of this name. An error message starts with `what`, the name's origin.
inline const InstructionSet& named(const std::string& name, const std::string& what) {
  std::string known;
  for (const InstructionSet* set : instruction_sets_here()) {
    if (name == set->name) return *set;
    known += (known.empty() ? "" : ", ") + std::string(set->name);
  }
  throw std::invalid_argument(what + " must be one of this processor's, " + known +
                              ". Received: " + name);
}

// The instruction set of calls that name none: this processor's fastest, or the one that the
// environment names, so that you can measure a slower processor's on a faster processor.
inline const InstructionSet& chosen_set() {
  static const InstructionSet& chosen = []() -> const InstructionSet& {
    const char* variable = std::getenv("TFASR_INSTRUCTION_SET");
    if (variable == nullptr || *variable == '\0') return *instruction_sets_here().front();
    return named(variable, "The environment variable TFASR_INSTRUCTION_SET");
  }();
  return chosen;
}

}  // namespace recurrent
