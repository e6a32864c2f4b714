#include "outside_model.hpp"

#include <cmath>
#include <stdexcept>

namespace word_beam {
namespace {

constexpr std::size_t kMaxKnown = std::size_t{1} << 20;  // about 60 MB

double factor_of(double logarithm) {
  if (!(logarithm <= OutsideModel::kMaxLogFactor)) {
    throw std::invalid_argument("A language model's factor must be a number, at most e^200.");
  }
  return std::exp(logarithm);
}

}  // namespace

Closed OutsideModel::close(const LmState& state, std::int32_t word) const {
  const std::uint64_t key =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(state.context)) << 32) |
      static_cast<std::uint32_t>(word);
  std::pair<std::int32_t, double> answer;
  bool is_known = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = known_.find(key);
    is_known = found != known_.end();
    if (is_known) answer = found->second;
  }
  if (!is_known) {
    answer = score_(state.context, word);  // without the lock: this may wait for Python
    const std::lock_guard<std::mutex> lock(mutex_);
    if (known_.size() >= kMaxKnown) known_.clear();
    known_.emplace(key, answer);
  }
  Closed closed;
  closed.state.context = answer.first;
  closed.state.num_words = state.num_words + 1;
  closed.factor = factor_of(answer.second);
  return closed;
}

double OutsideModel::end_factor(const LmState& state) const {
  return factor_of(end_(state.context));
}

}  // namespace word_beam
