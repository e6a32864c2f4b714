// Selects the candidates that the beam keeps after a frame.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "search.hpp"

namespace word_beam {
namespace {

constexpr std::int64_t kBins = 1024;  // of a histogram of scores: eight per power of two

}  // namespace

// Returns the score of the `width`-th best candidate, which must exist, and how many candidates
// have a higher score or the same.
Search::Last Search::last_of(std::size_t width) {
  // Positive doubles have the order of their bits, so the bin is the exponent and three more bits.
  const auto bin_of = [](double score) {
    std::uint64_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    return static_cast<std::int64_t>(bits >> 49);
  };
  const std::int64_t top = bin_of(best_);
  const auto bin_below_top = [&](double score) {
    return static_cast<std::size_t>(std::min<std::int64_t>(top - bin_of(score), kBins - 1));
  };
  histogram_.assign(kBins, 0);
  for (const double score : scores_) ++histogram_[bin_below_top(score)];
  std::size_t bin = 0;
  std::size_t above = 0;
  while (above + histogram_[bin] < width) above += histogram_[bin++];
  partition_.clear();
  for (const double score : scores_) {
    if (bin_below_top(score) == bin) partition_.push_back(score);
  }
  const auto last = partition_.begin() + static_cast<std::ptrdiff_t>(width - above - 1);
  std::nth_element(partition_.begin(), last, partition_.end(), std::greater<double>());
  Last found{*last, above, 0};
  for (const double score : partition_) {
    found.above += score > found.score;
    found.level += score == found.score;
  }
  return found;
}

// Raises the floor to the score of the beam_width-th best candidate so far, and drops candidates
// below it.
void Search::tighten() {
  set_floor(std::max(floor_, last_of(static_cast<std::size_t>(problem_.beam_width)).score));
  const std::size_t stays = beams_.size();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < extensions_.size(); ++i) {
    if (scores_[stays + i] < floor_) continue;
    scores_[stays + kept] = scores_[stays + i];
    extensions_[kept++] = extensions_[i];
  }
  scores_.resize(stays + kept);
  extensions_.resize(kept);
  // All candidates that tie at the floor stay, so there may be more than beam_width.
  tighten_at_ = std::max(tighten_at_, 2 * scores_.size());
}

// Returns the lowest score that enters the next frame. If too many candidates have that score, some
// of them lose it.
double Search::admission() {
  const auto width = static_cast<std::size_t>(problem_.beam_width);
  if (scores_.size() <= width) return kSmallest;
  const Last last = last_of(width);
  if (last.score < kSmallest) return kSmallest;
  if (last.above + last.level > width) keep_first_of_ties(width - last.above, last.score);
  return last.score;
}

// Sets `dropped_` to the beams that leave, and reduces `extensions_` to those that enter.
void Search::select() {
  const double threshold = admission();
  const std::size_t stays = beams_.size();
  dropped_.resize(stays);
  std::size_t dropped = 0;
  for (std::size_t i = 0; i < stays; ++i) {
    dropped_[dropped] = static_cast<std::int32_t>(i);
    dropped += scores_[i] < threshold;
  }
  dropped_.resize(dropped);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < extensions_.size(); ++i) {
    extensions_[kept] = extensions_[i];
    kept += scores_[stays + i] >= threshold;
  }
  extensions_.resize(kept);
}

// Whether candidate `a` comes before `b` in the lexicographic order of their classes.
bool Search::stands_before(std::size_t a, std::size_t b) const {
  const std::size_t stays = beams_.size();
  const auto end_of = [&](std::size_t i) {
    if (i < stays) return std::make_pair(beams_.states[i].node, SequenceTree::kNone + 0);
    const Extension& extension = extensions_[i - stays];
    return std::make_pair(beams_.states[static_cast<std::size_t>(extension.slot)].node,
                          extension.label);
  };
  const auto left = end_of(a);
  const auto right = end_of(b);
  return tree_.before(left.first, left.second, right.first, right.second);
}

// Of the candidates whose score is the threshold, keeps the first `room` in the lexicographic order
// of their classes, and sets the score of the others to 0.
void Search::keep_first_of_ties(std::size_t room, double threshold) {
  ties_.clear();
  for (std::size_t i = 0; i < scores_.size(); ++i) {
    if (scores_[i] == threshold) ties_.push_back(i);
  }
  const auto first_lost = ties_.begin() + static_cast<std::ptrdiff_t>(room);
  std::nth_element(ties_.begin(), first_lost, ties_.end(),
                   [this](std::size_t a, std::size_t b) { return stands_before(a, b); });
  for (auto i = first_lost; i != ties_.end(); ++i) scores_[*i] = 0.0;
}

}  // namespace word_beam
