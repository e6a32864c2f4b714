// Turns the last frame's beams into texts.
#include <algorithm>
#include <cstddef>

#include "search.hpp"

namespace word_beam {

// Ranks the beams, the best first. If the language model scores the sentence's end, beams with an
// incomplete last word come last, unless only one word can complete it.
std::vector<Search::Final> Search::rank() {
  std::vector<Final> ranked;
  const LanguageModel* model = problem_.language_model;
  for (std::size_t i = 0; i < beams_.size(); ++i) {
    Final final{static_cast<std::int32_t>(i), beams_.now[i].total * beams_.states[i].weight, true};
    if (weighs_ && model->scores_end()) {
      const BeamState& state = beams_.states[i];
      const Prefix& prefix = problem_.dictionary->prefix(state.prefix);
      LmState last = state.lm;
      if (state.prefix != Dictionary::kRoot) {
        const Dictionary& dictionary = *problem_.dictionary;
        const bool is_unique = prefix.word_end - prefix.word_begin == 1;
        final.whole = prefix.terminal || is_unique || dictionary.is_open();
        if (final.whole) {
          // The weight of the word that it has become replaces that of the words it could become.
          const std::int32_t word = dictionary.word_of(state.prefix);
          const bool is_finished = prefix.terminal || dictionary.is_open();
          const Closed closed =
              is_finished ? model->close(last, word) : model->close_unfinished(last, word);
          final.score = beams_.now[i].total * closed.weight * closed.factor;
          last = closed.state;
        }
      }
      if (final.whole) final.score *= model->end_factor(last);
    }
    if (final.score > 0.0) ranked.push_back(final);
  }
  std::sort(ranked.begin(), ranked.end(), [this](const Final& a, const Final& b) {
    if (a.whole != b.whole) return a.whole;
    if (a.score != b.score) return a.score > b.score;
    return tree_.before(beams_.states[static_cast<std::size_t>(a.slot)].node, SequenceTree::kNone,
                        beams_.states[static_cast<std::size_t>(b.slot)].node,
                        SequenceTree::kNone);
  });
  return ranked;
}

// Returns a beam's classes. A last, incomplete word is completed if it can become only one word.
std::vector<std::int32_t> Search::completed(std::int32_t slot) const {
  const BeamState& state = beams_.states[static_cast<std::size_t>(slot)];
  std::vector<std::int32_t> labels = tree_.sequence(state.node);
  const Dictionary& dictionary = *problem_.dictionary;
  const Prefix& prefix = dictionary.prefix(state.prefix);
  const bool is_unique = prefix.word_end - prefix.word_begin == 1;
  if (state.prefix == Dictionary::kRoot || !is_unique || dictionary.is_open()) return labels;
  std::size_t written = 0;
  for (std::int32_t node = state.node; node != SequenceTree::kRoot; node = tree_[node].parent) {
    if (problem_.kinds[static_cast<std::size_t>(tree_[node].label)] == kGap) break;
    ++written;
    if (!problem_.is_inside(tree_[node].label)) break;
  }
  const std::vector<std::int32_t>& word = dictionary.word(prefix.word_begin);
  labels.insert(labels.end(), word.begin() + static_cast<std::ptrdiff_t>(written), word.end());
  return labels;
}

// Removes separators, and all spaces except one between words.
void Search::clean(std::vector<std::int32_t>& labels) const {
  std::size_t kept = 0;
  for (const std::int32_t label : labels) {
    if (label == problem_.separator) continue;
    const bool superfluous = kept == 0 || labels[kept - 1] == problem_.space;
    if (label == problem_.space && superfluous) continue;
    labels[kept++] = label;
  }
  if (kept > 0 && labels[kept - 1] == problem_.space) --kept;
  labels.resize(kept);
}

}  // namespace word_beam
