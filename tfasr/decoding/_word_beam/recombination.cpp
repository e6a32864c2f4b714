// Drops candidates that can't win: another one can continue in the same ways, and scores no less in
// any of them.
#include <algorithm>

#include "search.hpp"

namespace word_beam {

bool Search::Future::is_that_of(const Future& other) const {
  return prefix == other.prefix && last == other.last && context == other.context &&
         num_words == other.num_words;
}

bool Search::Future::dominates(const Future& other) const {
  return p_blank >= other.p_blank && p_non_blank >= other.p_non_blank &&
         log_product >= other.log_product;
}

std::size_t Search::Future::hash() const {
  std::uint64_t bits = 0;
  for (const std::int32_t part : {prefix, last, context, num_words}) {
    bits = (bits ^ static_cast<std::uint32_t>(part)) * 0x9e3779b97f4a7c15ULL;
    bits ^= bits >> 32;
  }
  return static_cast<std::size_t>(bits);
}

Search::Future Search::future_of_stay(std::size_t slot) const {
  const BeamState& state = beams_.states[slot];
  return {state.prefix,       beams_.now[slot].last,        state.lm.context,           state.lm.num_words,
          state.lm.log_product, beams_.next[slot].p_blank, beams_.next[slot].p_non_blank};
}

Search::Future Search::future_of_extension(const Extension& extension) {
  const BeamState& state = beams_.states[static_cast<std::size_t>(extension.slot)];
  const bool is_inside = problem_.is_inside(extension.label);
  const LmState& lm = is_inside || !weighs_ ? state.lm : closed(extension.slot).state;
  const std::int32_t prefix = grown_prefix(state.prefix, extension.label);
  return {prefix,         extension.label, lm.context,
          lm.num_words,   lm.log_product,  0.0,
          grown_probability(extension.slot, extension.label)};
}

bool Search::is_better(std::size_t a, std::size_t b) const {
  return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : stands_before(a, b);
}

// Sets the score of a candidate to 0 if the best one with the same future dominates it.
void Search::recombine() {
  const std::size_t size = scores_.size();
  const std::size_t stays = beams_.size();
  std::size_t slots = 64;
  while (slots < 2 * size) slots *= 2;
  table_.assign(slots, -1);
  futures_.resize(size);
  best_of_.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    futures_[i] = i < stays ? future_of_stay(i) : future_of_extension(extensions_[i - stays]);
    std::size_t place = futures_[i].hash() & (slots - 1);
    while (table_[place] >= 0 &&
           !futures_[static_cast<std::size_t>(table_[place])].is_that_of(futures_[i])) {
      place = (place + 1) & (slots - 1);
    }
    std::int32_t& best = table_[place];
    if (best < 0 || is_better(i, static_cast<std::size_t>(best))) {
      best = static_cast<std::int32_t>(i);
    }
    best_of_[i] = static_cast<std::int32_t>(place);
  }
  for (std::size_t i = 0; i < size; ++i) {
    const auto best = static_cast<std::size_t>(table_[static_cast<std::size_t>(best_of_[i])]);
    if (best != i && futures_[best].dominates(futures_[i])) scores_[i] = 0.0;
  }
}

}  // namespace word_beam
