#include "beams.hpp"

#include <algorithm>

namespace word_beam {

Beams::Beams(SequenceTree& tree, const Dictionary& dictionary,
             const std::vector<std::uint8_t>& is_word_class)
    : tree_(tree), dictionary_(dictionary), num_words_((is_word_class.size() + 63) / 64) {
  for (std::size_t label = 0; label < is_word_class.size(); ++label) {
    if (!is_word_class[label]) gap_labels_.push_back(static_cast<std::int32_t>(label));
  }
}

void Beams::resize(std::size_t size) {
  p_blank.resize(size);
  p_non_blank.resize(size);
  total.resize(size);
  weight.resize(size);
  next_blank.resize(size);
  next_non_blank.resize(size);
  last.resize(size);
  parent_slot.resize(size);
  may_gap.resize(size);
  is_closed.resize(size);
  closed.resize(size);
  states.resize(size);
  open_.resize(size * num_words_);
}

void Beams::clear() { resize(0); }

void Beams::reserve(std::size_t size) {
  const std::size_t before = states.size();
  resize(std::max(size, before));
  resize(before);
}

void Beams::set_open(std::size_t slot, std::int32_t label, bool open) {
  std::uint64_t& word = open_[slot * num_words_ + static_cast<std::size_t>(label) / 64];
  const std::uint64_t bit = std::uint64_t{1} << (static_cast<unsigned>(label) % 64);
  word = open ? word | bit : word & ~bit;
}

void Beams::allow(std::size_t slot) {
  const auto begin = open_.begin() + static_cast<std::ptrdiff_t>(slot * num_words_);
  std::fill(begin, begin + static_cast<std::ptrdiff_t>(num_words_), 0);
  const Prefix& prefix = dictionary_.prefix(states[slot].prefix);
  for (std::int32_t i = 0; i < prefix.num_children; ++i) {
    set_open(slot, dictionary_.prefix(prefix.first_child + i).label, true);
  }
  may_gap[slot] = states[slot].prefix == Dictionary::kRoot || prefix.terminal;
  if (may_gap[slot]) {
    for (const std::int32_t label : gap_labels_) set_open(slot, label, true);
  }
}

void Beams::add(BeamState state, double blank, double non_blank) {
  const std::size_t slot = size();
  resize(slot + 1);
  states[slot] = state;
  p_blank[slot] = blank;
  p_non_blank[slot] = non_blank;
  total[slot] = blank + non_blank;
  next_blank[slot] = blank;
  next_non_blank[slot] = non_blank;
  weight[slot] = state.weight;
  is_closed[slot] = 0;
  allow(slot);

  SequenceTree::Node& node = tree_[state.node];
  const auto here = static_cast<std::int32_t>(slot);
  node.slot = here;
  last[slot] = node.label;
  parent_slot[slot] = node.parent == SequenceTree::kNone ? -1 : tree_[node.parent].slot;
  if (parent_slot[slot] >= 0) {
    set_open(static_cast<std::size_t>(parent_slot[slot]), node.label, false);
  }
  for (std::int32_t i = node.first_child; i != SequenceTree::kNone; i = tree_[i].next) {
    if (tree_[i].slot == SequenceTree::kNone) continue;
    parent_slot[static_cast<std::size_t>(tree_[i].slot)] = here;
    set_open(slot, tree_[i].label, false);
  }
}

void Beams::leave(std::size_t slot) {
  SequenceTree::Node& node = tree_[states[slot].node];
  node.slot = SequenceTree::kNone;
  if (parent_slot[slot] >= 0) {
    set_open(static_cast<std::size_t>(parent_slot[slot]), node.label, true);
  }
  for (std::int32_t i = node.first_child; i != SequenceTree::kNone; i = tree_[i].next) {
    if (tree_[i].slot != SequenceTree::kNone) {
      parent_slot[static_cast<std::size_t>(tree_[i].slot)] = -1;
    }
  }
  tree_.release(states[slot].node);
}

void Beams::move(std::size_t from, std::size_t to) {
  p_blank[to] = p_blank[from];
  p_non_blank[to] = p_non_blank[from];
  total[to] = total[from];
  weight[to] = weight[from];
  last[to] = last[from];
  parent_slot[to] = parent_slot[from];
  may_gap[to] = may_gap[from];
  is_closed[to] = is_closed[from];
  closed[to] = closed[from];
  states[to] = states[from];
  for (std::size_t i = 0; i < num_words_; ++i) {
    open_[to * num_words_ + i] = open_[from * num_words_ + i];
  }
  SequenceTree::Node& node = tree_[states[to].node];
  node.slot = static_cast<std::int32_t>(to);
  for (std::int32_t i = node.first_child; i != SequenceTree::kNone; i = tree_[i].next) {
    if (tree_[i].slot != SequenceTree::kNone) {
      parent_slot[static_cast<std::size_t>(tree_[i].slot)] = static_cast<std::int32_t>(to);
    }
  }
}

void Beams::remove(const std::vector<std::int32_t>& slots) {
  for (const std::int32_t slot : slots) leave(static_cast<std::size_t>(slot));
  std::size_t end = size();
  for (std::size_t i = slots.size(); i > 0; --i) {
    const auto slot = static_cast<std::size_t>(slots[i - 1]);
    --end;  // from behind, so that what moves into a slot is never itself removed
    if (slot != end) move(end, slot);
  }
  resize(end);
}

}  // namespace word_beam
