// Solves random problems with every instruction set and various numbers of threads, for sanitizers;
// see sanitize.mk. Arguments: the number of problems, the first problem's number, and "interpreted"
// to test instead the instruction sets that this processor lacks, by missing_instructions.hpp.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "instruction_set.hpp"
#include "missing_instructions.hpp"
#include "team.hpp"

namespace recurrent {

namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t most) { return 1 + random() % most; }

std::vector<float> normal(Random& random, std::size_t size, float scale) {
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(size);
  for (float& value : values) value = distribution(random);
  return values;
}

// A problem's inputs, in vectors of the exact sizes: sanitizers notice reads beyond the end.
struct Drawn {
  Cell cell;
  std::size_t batch, time, units, width;
  std::vector<float> projected, bias, kernel, h, c, d_outputs, d_h, d_c;
  std::vector<std::uint8_t> mask;
  bool masked;
  // Of a CTC loss, for the same batch:
  std::size_t frames, classes, labels_width;
  std::vector<float> logits;
  std::vector<std::int32_t> lengths, labels, label_lengths;
};

Drawn draw(Random& random) {
  Drawn d;
  d.cell = random() % 2 ? Cell::kLstm : Cell::kVanilla;
  d.batch = below(random, 20), d.time = below(random, 5), d.units = below(random, 70);
  d.width = d.units * (d.cell == Cell::kLstm ? 4 : 1);
  const std::size_t states = d.batch * d.units;
  d.projected = normal(random, d.batch * d.time * d.width, 1);
  d.bias = normal(random, d.width, 1);
  d.kernel = normal(random, d.units * d.width, 0.1f);
  for (auto* state : {&d.h, &d.c, &d.d_h, &d.d_c}) *state = normal(random, states, 1);
  d.d_outputs = normal(random, states * d.time, 1);
  d.mask.resize(d.batch * d.time);
  for (std::uint8_t& valid : d.mask) valid = random() % 2;
  d.masked = random() % 2;
  d.frames = below(random, 12), d.classes = 1 + below(random, 20);
  d.labels_width = below(random, d.frames);
  d.logits = normal(random, d.batch * d.frames * d.classes, 1);
  const std::size_t kind = random() % 3;
  for (float& logit : d.logits) {
    // So far apart that most paths' probabilities are below the least float.
    if (kind == 1) logit *= 300;
    // Farther, and all at one of two places: probabilities are 1, or equal, or almost 0.
    if (kind == 2) logit = logit > 1 ? 1e5f : 0;
  }
  for (std::size_t u = 0; u < d.batch; ++u) {
    const std::size_t labels = below(random, d.labels_width);
    const std::size_t frames = labels + random() % (d.frames - labels + 1);
    d.label_lengths.push_back(static_cast<std::int32_t>(labels));
    d.lengths.push_back(static_cast<std::int32_t>(frames));
    for (std::size_t i = 0; i < d.labels_width; ++i) {
      const auto any = static_cast<std::int32_t>(random() % (d.classes - 1));
      d.labels.push_back(i < labels ? any : -1);
    }
  }
  return d;
}

std::vector<Bfloat16> upper_half(const std::vector<float>& values) {
  std::vector<Bfloat16> halves(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    halves[i] = {static_cast<std::uint16_t>(bits >> 16)};
  }
  return halves;
}

void append(std::vector<float>& all, const std::vector<float>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

void append(std::vector<float>& all, const std::vector<Bfloat16>& part) {
  for (const Bfloat16 half : part) {
    const std::uint32_t bits = static_cast<std::uint32_t>(half.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    all.push_back(value);
  }
}

void run(const InstructionSet& set, Cell cell, const Forward<float>& problem, int threads) {
  set.forward_float(cell, problem, threads);
}
void run(const InstructionSet& set, Cell cell, const Forward<Bfloat16>& problem, int threads) {
  set.forward_bfloat16(cell, problem, threads);
}
void run(const InstructionSet& set, Cell cell, const Backward<float>& problem, int threads) {
  set.backward_float(cell, problem, threads);
}
void run(const InstructionSet& set, Cell cell, const Backward<Bfloat16>& problem, int threads) {
  set.backward_bfloat16(cell, problem, threads);
}

// Solves a recurrence, forwards and backwards.
template <class Number>
std::vector<float> recur(const InstructionSet& set, const Drawn& d,
                         const std::vector<Number>& projected, const std::vector<Number>& kernel,
                         int threads) {
  const std::size_t sequence = d.batch * d.time;
  std::vector<float> gates(sequence * d.width), c(sequence * d.units), outputs(sequence * d.units);
  std::vector<float> d_bias(d.width), d_h = d.d_h, d_c = d.d_c;
  std::vector<Number> dz(sequence * d.width), previous(sequence * d.units);
  Forward<Number> forward;
  forward.batch = d.batch;
  forward.time = d.time;
  forward.units = d.units;
  forward.recurrent_kernel = kernel.data();
  forward.initial_h = d.h.data();
  forward.initial_c = d.c.data();
  forward.mask = d.masked ? d.mask.data() : nullptr;
  forward.ceiling = 0.7f;
  forward.projected = projected.data();
  forward.bias = d.bias.data();
  forward.gates = gates.data();
  forward.c = c.data();
  forward.outputs = outputs.data();
  run(set, d.cell, forward, threads);
  Backward<Number> backward;
  static_cast<Recurrence<Number>&>(backward) = forward;
  backward.gates = gates.data();
  backward.c = c.data();
  backward.outputs = outputs.data();
  backward.d_outputs = d.d_outputs.data();
  backward.d_h = d_h.data();
  backward.d_c = d_c.data();
  backward.dz = dz.data();
  backward.previous_h = previous.data();
  backward.d_bias = d_bias.data();
  run(set, d.cell, backward, threads);
  std::vector<float> all = outputs;
  append(all, dz);
  append(all, previous);
  append(all, d_bias);
  append(all, d_h);
  return all;
}

// Solves batch normalisation with dropout, with a recurrence's inputs as its inputs.
template <class Number>
std::vector<float> normalise(const InstructionSet& set, const Drawn& d,
                             const std::vector<Number>& inputs, int threads) {
  const std::size_t rows = d.batch * d.time;
  std::vector<float> mean(d.width), variance(d.width), d_gamma(d.width), d_beta(d.width);
  std::vector<Number> outputs(rows * d.width), d_inputs(rows * d.width);
  const std::vector<std::uint8_t> all_valid(rows, 1);
  NormaliseForward<Number> forward;
  forward.rows = rows;
  forward.channels = d.width;
  forward.inputs = inputs.data();
  forward.mask = d.masked ? d.mask.data() : all_valid.data();
  forward.gamma = forward.beta = d.bias.data();
  forward.epsilon = 1e-3f;
  forward.dropout.dropped_levels = d.masked ? 20000 : 0;
  forward.dropout.scale = d.masked ? 65536.0f / 45536.0f : 1.0f;
  forward.dropout.seed[0] = static_cast<std::int32_t>(rows);
  forward.outputs = outputs.data();
  forward.mean = mean.data();
  forward.variance = variance.data();
  NormaliseBackward<Number> backward;
  static_cast<Normalisation<Number>&>(backward) = forward;
  backward.mean = mean.data();
  backward.variance = variance.data();
  backward.d_outputs = inputs.data();
  backward.d_inputs = d_inputs.data();
  backward.d_gamma = d_gamma.data();
  backward.d_beta = d_beta.data();
  if constexpr (sizeof(Number) == sizeof(float)) {
    set.normalise_float(forward, threads);
    set.normalise_back_float(backward, threads);
  } else {
    set.normalise_bfloat16(forward, threads);
    set.normalise_back_bfloat16(backward, threads);
  }
  std::vector<float> all;
  append(all, outputs);
  append(all, d_inputs);
  for (const auto& part : {mean, variance, d_gamma, d_beta}) append(all, part);
  return all;
}

// How many frames a path through an utterance's labels needs: a blank separates equal neighbours.
std::int32_t frames_needed(const Drawn& d, std::size_t utterance) {
  const std::int32_t* labels = d.labels.data() + utterance * d.labels_width;
  std::int32_t needed = d.label_lengths[utterance];
  for (std::int32_t i = 1; i < d.label_lengths[utterance]; ++i) needed += labels[i] == labels[i - 1];
  return needed;
}

// Whether the losses are infinite, and the gradients 0, exactly where the labels have no path.
bool paths_exist_or_not(const Drawn& d, const std::vector<float>& losses,
                        const std::vector<float>& gradient) {
  const std::size_t size = d.frames * d.classes;
  for (std::size_t u = 0; u < d.batch; ++u) {
    const bool exists = d.lengths[u] >= frames_needed(d, u);
    if (std::isfinite(losses[u]) != exists) return false;
    const auto begin = gradient.begin() + static_cast<std::ptrdiff_t>(u * size);
    const auto zero = [](float slope) { return slope == 0; };
    if (!exists && !std::all_of(begin, begin + static_cast<std::ptrdiff_t>(size), zero)) {
      return false;
    }
  }
  return true;
}

// Solves a CTC loss. Losses are divided by what they may reach, infinite ones are -1. All are NaN,
// which equals nothing, if a path was found that doesn't exist, or if one that exists was not.
std::vector<float> align(const InstructionSet& set, const Drawn& d, int threads) {
  std::vector<float> losses(d.batch), gradient(d.logits.size());
  Ctc problem;
  problem.batch = d.batch;
  problem.frames = d.frames;
  problem.classes = d.classes;
  problem.width = d.labels_width;
  problem.logits = d.logits.data();
  problem.lengths = d.lengths.data();
  problem.labels = d.labels.data();
  problem.label_lengths = d.label_lengths.data();
  problem.losses = losses.data();
  problem.gradient = gradient.data();
  check(problem);
  set.ctc(problem, threads);
  if (!paths_exist_or_not(d, losses, gradient)) {
    std::fill(losses.begin(), losses.end(), std::numeric_limits<float>::quiet_NaN());
  }
  float largest = 1;
  for (const float loss : losses) {
    if (std::isfinite(loss)) largest = std::max(largest, loss);
  }
  for (float& loss : losses) {
    if (!std::isnan(loss)) loss = std::isfinite(loss) ? loss / largest : -1;
  }
  append(losses, gradient);
  return losses;
}

using Solve = std::vector<float> (*)(const InstructionSet&, const Drawn&, int);

std::vector<float> recur_float(const InstructionSet& set, const Drawn& d, int threads) {
  return recur(set, d, d.projected, d.kernel, threads);
}
std::vector<float> recur_rounded(const InstructionSet& set, const Drawn& d, int threads) {
  return recur(set, d, upper_half(d.projected), upper_half(d.kernel), threads);
}
std::vector<float> normalise_float(const InstructionSet& set, const Drawn& d, int threads) {
  return normalise(set, d, d.projected, threads);
}
std::vector<float> normalise_rounded(const InstructionSet& set, const Drawn& d, int threads) {
  return normalise(set, d, upper_half(d.projected), threads);
}
// What is solved, and by how much (relative) the results of instruction sets may differ. Bfloat16
// needs more, because a value that is rounded the other way changes all later ones.
const struct {
  const char* name;
  Solve solve;
  float tolerance;
} kSolvers[] = {{"float", recur_float, 1e-3f},
                {"bfloat16", recur_rounded, 5e-2f},
                {"normalisation of float", normalise_float, 1e-3f},
                {"normalisation of bfloat16", normalise_rounded, 5e-2f},
                {"CTC", align, 1e-4f}};

float largest_of(const std::vector<float>& values) {
  float largest = 1;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

using Sets = std::vector<const InstructionSet*>;

// Returns the instruction sets that this processor lacks, and emulates them from now on. The list
// is empty if it has all, or if it lacks even AVX-512.
Sets interpreted_sets() {
  Sets sets;
#ifdef RECURRENT_INTERPRETS
  if (!k_avx512.runs_here()) return sets;
  for (const InstructionSet* set : {&k_amx, &k_avx512bf16}) {
    if (!set->runs_here()) sets.push_back(set);
  }
  carry_out_missing_instructions();
#endif
  return sets;
}

// Whether the instruction sets solve a problem like portable code; prints the first difference.
bool agree(const Sets& sets, const Drawn& drawn, int problem, Random& random) {
  for (const auto& [name, solve, tolerance] : kSolvers) {
    const std::vector<float> expected = solve(k_portable, drawn, 1);
    const float most = tolerance * largest_of(expected);
    for (const InstructionSet* set : sets) {
      const int threads = static_cast<int>(below(random, 5));
      const std::vector<float> received = solve(*set, drawn, threads);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (!(std::abs(received[i] - expected[i]) <= most)) {
          std::printf("problem %d, %s, by %s, %d threads: value %zu is %g, not %g\n", problem, name,
                      set->name, threads, i, received[i], expected[i]);
          return false;
        }
      }
      if (tiles_in_use()) {
        std::printf("problem %d, %s, by %s: tiles were not released\n", problem, name, set->name);
        return false;
      }
    }
  }
  return true;
}

// Whether team plans fit their problems: no more threads than allowed, no more members of a group
// than blocks, and at least four utterances per group if there are several groups.
bool plans_fit() {
  for (int threads = 1; threads <= 64; ++threads) {
    for (const std::size_t batch : {1, 3, 4, 16, 64}) {
      for (const std::size_t blocks : {1, 5, 16, 100}) {
        for (const std::size_t weight_bytes : {1 << 10, 1 << 20, 1 << 24}) {
          const auto [groups, members] = plan_team(threads, batch, blocks, weight_bytes);
          const auto most_groups = static_cast<int>(std::max<std::size_t>(1, batch / 4));
          if (groups < 1 || members < 1 || groups * members > threads || groups > most_groups ||
              members > static_cast<int>(blocks)) {
            std::printf("%d threads, batch %zu, %zu blocks: %d groups of %d\n", threads, batch,
                        blocks, groups, members);
            return false;
          }
        }
      }
    }
  }
  const TeamPlan wide = plan_team(64, 16, 16, 1 << 20);
  return wide.groups == 4 && wide.members == 16;
}

}  // namespace
}  // namespace recurrent

int main(int count, char** arguments) {
  using namespace recurrent;
  const int problems = count > 1 ? std::atoi(arguments[1]) : 100;
  const int first = count > 2 ? std::atoi(arguments[2]) : 0;
  const bool interpreted = count > 3 && arguments[3] == std::string("interpreted");
  if (!plans_fit()) return 1;
  const Sets sets = interpreted ? interpreted_sets() : instruction_sets_here();
  for (const InstructionSet* set : sets) std::printf("%s%s", set == sets[0] ? "" : ", ", set->name);
  std::printf("%s: ", sets.empty() ? "nothing to interpret here" : "");
  std::fflush(stdout);
  for (int problem = first; problem < first + problems; ++problem) {
    Random random(static_cast<Random::result_type>(problem));
    const Drawn drawn = draw(random);
    if (!agree(sets, drawn, problem, random)) return 1;
  }
  std::printf("%d problems, no difference\n", problems);
  if (!sets.empty() && interpreted) {
    const CarriedOut done = carried_out();
    std::printf("%llu instructions of tiles and %llu products of pairs carried out\n",
                static_cast<unsigned long long>(done.of_tiles),
                static_cast<unsigned long long>(done.of_pair_products));
    return done.of_tiles + done.of_pair_products == 0;
  }
}
