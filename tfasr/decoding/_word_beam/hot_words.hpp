// Words that are expected in the speech: each multiplies the probability of texts that contain it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "language_model.hpp"

namespace word_beam {

// A hot word's bonus, a natural logarithm, counts once the word is complete. Until then, a beam has
// the largest bonus of the words that it can still become, so that hot words stay in the beam; this
// part is taken back if another word comes out (language model look-ahead: S. Ortmanns, H. Ney,
// A. Eiden, "Language-model look-ahead for large vocabulary speech recognition", ICSLP 1996).
class HotWords : public LanguageModel {
 public:
  static constexpr double kMaxBonus = 100.0;

  // bonuses: by word id, each id once. model: scores the words too; nullptr for none. Throws
  // std::invalid_argument for other bonuses than -kMaxBonus to kMaxBonus, or a model that scores
  // incomplete words.
  HotWords(std::vector<std::pair<std::int32_t, double>> bonuses,
           std::shared_ptr<const LanguageModel> model);

  bool fits(const Dictionary& dictionary) const override;
  Closed close(const LmState& state, std::int32_t word) const override;
  // Adds no positive bonus: a single letter would earn that of the whole word.
  Closed close_unfinished(const LmState& state, std::int32_t word) const override;
  bool forecasts() const override { return true; }
  double ahead(const LmState& state, std::int32_t begin, std::int32_t end) const override;
  double ahead_limit(const LmState&) const override { return largest_; }
  bool scores_end() const override { return true; }
  double end_factor(const LmState& state) const override;

 private:
  double bonus(std::int32_t word) const;  // 0 if the word isn't hot
  Closed close_by_model(const LmState& state, std::int32_t word) const;

  std::vector<std::pair<std::int32_t, double>> bonuses_;  // in the order of the ids
  std::shared_ptr<const LanguageModel> model_;
  double largest_ = 1.0;  // the largest factor of a word
};

}  // namespace word_beam
