// A language model outside this library, called through functions. Its results are remembered.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "language_model.hpp"

namespace word_beam {

class OutsideModel : public LanguageModel {
 public:
  static constexpr double kMaxLogFactor = 200.0;

  // Maps a state (-1 at the start) and a word to the next state (at least 0) and the natural
  // logarithm of the factor by which the beam's probability is multiplied.
  using Score = std::function<std::pair<std::int32_t, double>(std::int32_t, std::int32_t)>;
  // Maps a state to the natural logarithm of the factor for the sentence's end.
  using End = std::function<double(std::int32_t)>;

  OutsideModel(Score score, End end) : score_(std::move(score)), end_(std::move(end)) {}

  bool fits(const Dictionary& dictionary) const override { return !dictionary.is_open(); }
  // Throws std::invalid_argument if the logarithm is NaN or above kMaxLogFactor.
  Closed close(const LmState& state, std::int32_t word) const override;
  bool scores_end() const override { return true; }
  double end_factor(const LmState& state) const override;

 private:
  Score score_;
  End end_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::uint64_t, std::pair<std::int32_t, double>> known_;
};

}  // namespace word_beam
