// Random problems by every instruction set and number of threads, for sanitizers; see sanitize.mk.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "problem.hpp"

namespace recurrent {

extern const Steps k_portable;
#if defined(__x86_64__) && defined(__GNUC__)
extern const Steps k_avx2, k_avx512, k_avx512bf16;
const Steps* const kAll[] = {&k_portable, &k_avx2, &k_avx512, &k_avx512bf16};
#else
const Steps* const kAll[] = {&k_portable};
#endif

namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t most) { return 1 + random() % most; }

std::vector<float> normal(Random& random, std::size_t size, float scale) {
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(size);
  for (float& value : values) value = distribution(random);
  return values;
}

// One problem with everything it reads; vectors of the exact sizes, so that no read goes beyond.
struct Drawn {
  Cell cell;
  std::size_t batch, time, units, width;
  std::vector<float> projected, bias, kernel, h, c, d_outputs, d_h, d_c;
  std::vector<std::uint8_t> mask;
  bool masked;
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
  return d;
}

std::vector<float> solve(const Steps& steps, Drawn d, int threads) {
  const std::size_t sequence = d.batch * d.time;
  std::vector<float> gates(sequence * d.width), c(sequence * d.units), outputs(sequence * d.units);
  std::vector<float> dz(sequence * d.width), previous(sequence * d.units), d_bias(d.width);
  const std::uint8_t* mask = d.masked ? d.mask.data() : nullptr;
  steps.forward_float(d.cell,
                      {d.batch, d.time, d.units, d.projected.data(), d.bias.data(), d.kernel.data(),
                       d.h.data(), d.c.data(), mask, gates.data(), c.data(), outputs.data(), 0.7f},
                      threads);
  steps.backward_float(
      d.cell,
      {d.batch, d.time, d.units, gates.data(), c.data(), outputs.data(), d.kernel.data(),
       d.h.data(), d.c.data(), mask, d.d_outputs.data(), d.d_h.data(), d.d_c.data(), dz.data(),
       previous.data(), d_bias.data(), 0.7f},
      threads);
  std::vector<float> all = outputs;
  for (const auto& part : {dz, previous, d_bias, d.d_h}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void solve_rounded(const Steps& steps, const Drawn& d, int threads) {
  const auto upper_half = [](const std::vector<float>& values) {
    std::vector<Bfloat16> halves(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &values[i], sizeof bits);
      halves[i] = {static_cast<std::uint16_t>(bits >> 16)};
    }
    return halves;
  };
  const auto projected = upper_half(d.projected), kernel = upper_half(d.kernel);
  const std::size_t sequence = d.batch * d.time;
  std::vector<float> gates(sequence * d.width), c(sequence * d.units), outputs(sequence * d.units);
  std::vector<float> d_bias(d.width), d_h = d.d_h, d_c = d.d_c;
  std::vector<Bfloat16> dz(sequence * d.width), previous(sequence * d.units);
  steps.forward_bfloat16(d.cell,
                         {d.batch, d.time, d.units, projected.data(), d.bias.data(), kernel.data(),
                          d.h.data(), d.c.data(), nullptr, gates.data(), c.data(), outputs.data(),
                          0.7f},
                         threads);
  steps.backward_bfloat16(
      d.cell,
      {d.batch, d.time, d.units, gates.data(), c.data(), outputs.data(), kernel.data(), d.h.data(),
       d.c.data(), nullptr, d.d_outputs.data(), d_h.data(), d_c.data(), dz.data(), previous.data(),
       d_bias.data(), 0.7f},
      threads);
}

}  // namespace
}  // namespace recurrent

int main(int count, char** arguments) {
  using namespace recurrent;
  const int problems = count > 1 ? std::atoi(arguments[1]) : 100;
  const int first = count > 2 ? std::atoi(arguments[2]) : 0;
  for (int problem = first; problem < first + problems; ++problem) {
    Random random(static_cast<Random::result_type>(problem));
    const Drawn drawn = draw(random);
    const std::vector<float> expected = solve(k_portable, drawn, 1);
    for (const Steps* steps : kAll) {
      if (!steps->runs_here()) continue;
      const int threads = static_cast<int>(below(random, 5));
      const std::vector<float> received = solve(*steps, drawn, threads);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (std::abs(received[i] - expected[i]) > 1e-3f * (1 + std::abs(expected[i]))) {
          std::printf("problem %d by %s, %d threads: value %zu is %g, not %g\n", problem,
                      steps->name, threads, i, received[i], expected[i]);
          return 1;
        }
      }
      solve_rounded(*steps, drawn, threads);
    }
  }
  std::printf("%d problems, no difference\n", problems);
}
