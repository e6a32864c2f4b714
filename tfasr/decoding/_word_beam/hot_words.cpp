#include "hot_words.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace word_beam {
namespace {

using Bonuses = std::vector<std::pair<std::int32_t, double>>;

// Returns the first bonus whose word id is `id` or more.
Bonuses::const_iterator from(const Bonuses& bonuses, std::int32_t id) {
  return std::lower_bound(
      bonuses.begin(), bonuses.end(), id,
      [](const std::pair<std::int32_t, double>& bonus, std::int32_t i) { return bonus.first < i; });
}

}  // namespace

HotWords::HotWords(Bonuses bonuses, std::shared_ptr<const LanguageModel> model)
    : bonuses_(std::move(bonuses)), model_(std::move(model)) {
  std::sort(bonuses_.begin(), bonuses_.end());
  for (std::size_t i = 0; i < bonuses_.size(); ++i) {
    const double bonus = bonuses_[i].second;
    if (!(std::abs(bonus) <= kMaxBonus)) {
      throw std::invalid_argument("A hot word's bonus must lie in -100..100.");
    }
    if (i > 0 && bonuses_[i - 1].first == bonuses_[i].first) {
      throw std::invalid_argument("A hot word must have one bonus.");
    }
    largest_ = std::max(largest_, std::exp(bonus));
  }
  if (model_ && (model_->forecasts() || !model_->scores_end())) {
    throw std::invalid_argument("Hot words need a language model that scores complete words.");
  }
}

bool HotWords::fits(const Dictionary& dictionary) const {
  if (!bonuses_.empty() &&
      (bonuses_.front().first < 0 || bonuses_.back().first >= dictionary.num_words())) {
    return false;
  }
  return !model_ || model_->fits(dictionary);
}

Closed HotWords::close(const LmState& state, std::int32_t word) const {
  Closed closed = close_by_model(state, word);
  closed.factor *= std::exp(bonus(word));
  return closed;
}

Closed HotWords::close_unfinished(const LmState& state, std::int32_t word) const {
  Closed closed = close_by_model(state, word);
  closed.factor *= std::exp(std::min(bonus(word), 0.0));
  return closed;
}

double HotWords::bonus(std::int32_t word) const {
  const auto found = from(bonuses_, word);
  return found != bonuses_.end() && found->first == word ? found->second : 0.0;
}

Closed HotWords::close_by_model(const LmState& state, std::int32_t word) const {
  if (model_) return model_->close(state, word);
  Closed closed;
  closed.state = state;
  return closed;
}

double HotWords::ahead(const LmState&, std::int32_t begin, std::int32_t end) const {
  double largest = 0.0;  // of words that aren't hot
  for (auto bonus = from(bonuses_, begin); bonus != bonuses_.end() && bonus->first < end; ++bonus) {
    largest = std::max(largest, bonus->second);
  }
  return std::exp(largest);
}

double HotWords::end_factor(const LmState& state) const {
  return model_ ? model_->end_factor(state) : 1.0;
}

}  // namespace word_beam
