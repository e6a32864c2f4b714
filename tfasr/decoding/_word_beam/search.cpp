#include "search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace word_beam {
namespace {

// Bounds are computed by multiplying in another order than for scores, so rounding may differ.
constexpr double kSlack = 1.0 - 1e-12;
// If the best score leaves this range, all are scaled by a power of two, which needs no rounding.
constexpr double kTooSmall = 0x1p-200;
constexpr double kTooLarge = 0x1p200;

}  // namespace

Search::Search(const Problem& problem)
    : problem_(problem),
      num_labels_(problem.blank()),
      weighs_(problem.language_model != nullptr),
      beams_(tree_, *problem.dictionary, problem.kinds),
      y_(problem.kinds.size() + 1) {}

std::vector<Result> Search::decode(const float* log_probs, std::int64_t frames,
                                   std::size_t n_best) {
  start();
  hear(log_probs, frames);
  return results(n_best);
}

void Search::hear(const float* log_probs, std::int64_t frames) {
  for (std::int64_t t = 0; t < frames && beams_.size() > 0; ++t) {
    step(log_probs + t * (num_labels_ + 1));
  }
}

std::vector<Result> Search::results(std::size_t n_best) {
  std::vector<Result> results;
  std::set<std::vector<std::int32_t>> seen;
  for (const Final& final : rank()) {
    if (results.size() == n_best) break;
    std::vector<std::int32_t> labels = completed(final.slot);
    clean(labels);
    if (!seen.insert(labels).second) continue;
    results.push_back({std::move(labels), std::log(final.score) + log_scale_});
  }
  if (results.empty()) results.push_back({{}, -std::numeric_limits<double>::infinity()});
  return results;
}

void Search::start() {
  tree_.clear();
  beams_.clear();
  dropped_.clear();
  if (newcomers_.empty()) newcomers_.resize(1);
  newcomers_[0] = Newcomer();
  newcomers_[0].p_blank = 1.0;
  tree_[SequenceTree::kRoot].slot = SequenceTree::kComing;
  beams_.exchange(dropped_, newcomers_, 1);
  log_scale_ = 0.0;
}

void Search::step(const float* log_probs) {
  read_frame(log_probs);
  stay();
  extend();
  if (problem_.recombine) recombine();
  select();
  commit();
  rescale();
}

void Search::read_frame(const float* log_probs) {
  for (std::size_t label = 0; label < y_.size(); ++label) {
    y_[label] = std::exp(std::min(0.0, static_cast<double>(log_probs[label])));
  }
}

// Sorts the classes by probability, without those that can't enter the beam even if they extend the
// beam with the largest total.
void Search::sort_classes() {
  word_classes_.clear();
  gap_classes_.clear();
  reach_ = 0;
  for (std::int32_t label = 0; label < num_labels_; ++label) {
    const double y = y_[static_cast<std::size_t>(label)];
    // With a language model, a beam of lower total may score higher, so all classes are tried.
    if (!weighs_ && y * largest_total_ < floor_) continue;
    reach_ |= std::uint64_t{1} << (static_cast<unsigned>(label) % 64);
    (problem_.is_inside(label) ? word_classes_ : gap_classes_).push_back({y, label});
  }
  for (std::vector<Class>* classes : {&word_classes_, &gap_classes_}) {
    std::sort(classes->begin(), classes->end(), [](const Class& a, const Class& b) {
      return a.y != b.y ? a.y > b.y : a.label < b.label;
    });
  }
}

// Computes the next frame's probabilities of all beams with unchanged sequences. This includes the
// probability that a beam's parent, extended by one class, becomes that beam.
void Search::stay() {
  const std::size_t size = beams_.size();
  const double blank = y_.back();
  scores_.resize(size);
  double least = std::numeric_limits<double>::infinity();
  best_ = 0.0;
  largest_total_ = 0.0;
  for (std::size_t i = 0; i < size; ++i) {
    const Mass& now = beams_.now[i];
    const std::int32_t last = now.last;
    double non_blank = 0.0;
    if (last >= 0) {
      const double y = y_[static_cast<std::size_t>(last)];
      non_blank = now.p_non_blank * y;
      if (now.parent_slot >= 0) {
        const Mass& parent = beams_.now[static_cast<std::size_t>(now.parent_slot)];
        const double grown = (parent.last == last ? parent.p_blank : parent.total) * y;
        non_blank += weighs_ ? grown * beams_.states[i].factor : grown;
      }
    }
    const double stays_blank = now.total * blank;
    double score = stays_blank + non_blank;
    beams_.next[i] = {stays_blank, non_blank, score, last, now.parent_slot};
    if (weighs_) score *= beams_.states[i].weight;
    scores_[i] = score;
    least = std::min(least, score);
    largest_total_ = std::max(largest_total_, beams_.now[i].total);
    best_ = std::max(best_, score);
  }
  const bool full = size >= static_cast<std::size_t>(problem_.beam_width);
  set_floor(full ? std::max(least, kSmallest) : kSmallest);
}

void Search::set_floor(double floor) {
  floor_ = floor;
  bound_ = weighs_ ? floor * kSlack : floor;
}

// Extends beams by one class, if the dictionary allows it and the score may be high enough.
void Search::extend() {
  extensions_.clear();
  tighten_at_ = 4 * static_cast<std::size_t>(problem_.beam_width) + beams_.size();
  const auto size = static_cast<std::int32_t>(beams_.size());
  sort_classes();
  const double likeliest_word = word_classes_.empty() ? 0.0 : word_classes_.front().y;
  const double likeliest_gap = gap_classes_.empty() ? 0.0 : gap_classes_.front().y;
  for (std::int32_t slot = 0; slot < size; ++slot) {
    const auto i = static_cast<std::size_t>(slot);
    if (num_labels_ <= 64 && !(beams_.open_labels(i) & reach_)) continue;
    double limit = beams_.now[i].total;
    if (weighs_) limit *= word_weight_limit(slot);
    if (limit * likeliest_word >= bound_) extend_over(slot, word_classes_, limit, true);
    if (beams_.may_gap[i]) {
      if (weighs_) limit = beams_.now[i].total * closed(slot).factor * gap_weight_limit(slot);
      if (limit * likeliest_gap >= bound_) extend_over(slot, gap_classes_, limit, false);
    }
    if (scores_.size() > tighten_at_ && !problem_.recombine) tighten();
  }
}

// Returns an upper bound on the language model's weight if a class inside a word is added.
double Search::word_weight_limit(std::int32_t slot) const {
  const BeamState& state = beams_.states[static_cast<std::size_t>(slot)];
  const LanguageModel& model = *problem_.language_model;
  return model.forecasts() ? model.ahead_limit(state.lm) : state.weight;
}

// Like word_weight_limit, for what follows a complete word: a gap, or a new word, whose forecast
// counts at once.
double Search::gap_weight_limit(std::int32_t slot) {
  const Closed& after = closed(slot);
  const LanguageModel& model = *problem_.language_model;
  return model.forecasts() ? std::max(after.weight, model.ahead_limit(after.state)) : after.weight;
}

// limit: no extension of the beam scores more than this times the class's probability.
void Search::extend_over(std::int32_t slot, const std::vector<Class>& classes, double limit,
                         bool is_inside) {
  const auto i = static_cast<std::size_t>(slot);
  const std::int32_t last = beams_.now[i].last;
  for (const auto& [y, label] : classes) {
    if (limit * y < bound_) break;
    if (!beams_.is_open(i, label)) continue;
    double score;
    if (weighs_) {
      score = grown_probability(slot, label) * grown_weight(slot, label, is_inside);
    } else {
      score = (label == last ? beams_.now[i].p_blank : beams_.now[i].total) * y;
    }
    if (score < floor_) continue;
    best_ = std::max(best_, score);
    scores_.push_back(score);
    extensions_.push_back({slot, label});
  }
}

// What the language model makes of a beam whose last word ends here. After a gap, no word ends.
const Closed& Search::closed(std::int32_t slot) {
  const auto i = static_cast<std::size_t>(slot);
  if (!beams_.is_closed[i]) {
    const BeamState& state = beams_.states[i];
    Closed closed;
    closed.state = state.lm;
    closed.weight = state.weight;
    if (weighs_ && state.prefix != Dictionary::kRoot) {
      const std::int32_t word = problem_.dictionary->word_of(state.prefix);
      closed = problem_.language_model->close(state.lm, word);
    }
    beams_.closed[i] = closed;
    beams_.is_closed[i] = 1;
  }
  return beams_.closed[i];
}

double Search::grown_probability(std::int32_t slot, std::int32_t label) const {
  const auto i = static_cast<std::size_t>(slot);
  const double from = label == beams_.now[i].last ? beams_.now[i].p_blank : beams_.now[i].total;
  const double grown = from * y_[static_cast<std::size_t>(label)];
  return weighs_ && !problem_.is_inside(label) ? grown * beams_.closed[i].factor : grown;
}

double Search::grown_weight(std::int32_t slot, std::int32_t label, bool is_inside) {
  const BeamState& state = beams_.states[static_cast<std::size_t>(slot)];
  const bool is_word = is_inside || problem_.kinds[static_cast<std::size_t>(label)] == kStart;
  if (!is_word || !problem_.language_model->forecasts()) {
    return is_inside ? state.weight : closed(slot).weight;
  }
  const Prefix& longer = problem_.dictionary->prefix(grown_prefix(state.prefix, label));
  const LmState& lm = is_inside ? state.lm : closed(slot).state;
  return problem_.language_model->ahead(lm, longer.word_begin, longer.word_end);
}

// The dictionary's prefix after one more class.
std::int32_t Search::grown_prefix(std::int32_t prefix, std::int32_t label) const {
  const std::uint8_t kind = problem_.kinds[static_cast<std::size_t>(label)];
  if (kind == kGap) return Dictionary::kRoot;
  return problem_.dictionary->child(kind == kStart ? Dictionary::kRoot : prefix, label);
}

BeamState Search::grown_state(std::int32_t slot, std::int32_t label) {
  BeamState state = beams_.states[static_cast<std::size_t>(slot)];
  const bool is_inside = problem_.is_inside(label);
  if (weighs_) state.weight = grown_weight(slot, label, is_inside);
  state.factor = 1.0;
  if (weighs_ && !is_inside) {
    state.factor = closed(slot).factor;
    state.lm = closed(slot).state;
  }
  state.prefix = grown_prefix(state.prefix, label);
  state.node = tree_.child(state.node, label);
  tree_[state.node].slot = SequenceTree::kComing;
  return state;
}

void Search::commit() {
  if (newcomers_.size() < extensions_.size()) newcomers_.resize(extensions_.size());
  for (std::size_t i = 0; i < extensions_.size(); ++i) {
    const Extension& extension = extensions_[i];
    newcomers_[i].p_non_blank = grown_probability(extension.slot, extension.label);
    newcomers_[i].p_blank = 0.0;
    newcomers_[i].state = grown_state(extension.slot, extension.label);
  }
  beams_.advance();
  beams_.exchange(dropped_, newcomers_, extensions_.size());
}

void Search::rescale() {
  if (best_ > kTooSmall && best_ < kTooLarge) return;
  double best = 0.0;
  for (std::size_t i = 0; i < beams_.size(); ++i) best = std::max(best, beams_.now[i].total);
  if (!(best > 0.0)) return;
  int exponent = 0;
  std::frexp(best, &exponent);
  for (std::size_t i = 0; i < beams_.size(); ++i) {
    beams_.now[i].p_blank = std::ldexp(beams_.now[i].p_blank, -exponent);
    beams_.now[i].p_non_blank = std::ldexp(beams_.now[i].p_non_blank, -exponent);
    beams_.now[i].total = beams_.now[i].p_blank + beams_.now[i].p_non_blank;
  }
  log_scale_ += exponent * std::log(2.0);
}

}  // namespace word_beam
