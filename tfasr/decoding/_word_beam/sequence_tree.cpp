#include "sequence_tree.hpp"

#include <algorithm>

namespace word_beam {

void SequenceTree::clear() {
  nodes_.assign(1, Node());
  free_.clear();
}

std::int32_t SequenceTree::child(std::int32_t parent, std::int32_t label) {
  const std::uint32_t bit = 1U << (static_cast<std::uint32_t>(label) % 32);
  if ((*this)[parent].child_labels & bit) {
    for (std::int32_t i = (*this)[parent].first_child; i != kNone; i = (*this)[i].next) {
      if ((*this)[i].label == label) return i;
    }
  }
  std::int32_t index;
  if (free_.empty()) {
    index = static_cast<std::int32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
    (*this)[index] = Node();
  }
  Node& node = (*this)[index];
  Node& above = (*this)[parent];
  node.parent = parent;
  node.label = label;
  node.depth = above.depth + 1;
  node.next = above.first_child;
  if (node.next != kNone) (*this)[node.next].previous = index;
  above.first_child = index;
  above.child_labels |= bit;
  return index;
}

void SequenceTree::release(std::int32_t index) {
  while (index != kRoot) {
    const Node& node = (*this)[index];
    if (node.slot != kNone || node.first_child != kNone) return;
    // Reads single fields, because copying the whole node would wait for the latest writes to it.
    const std::int32_t parent = node.parent;
    const std::int32_t next = node.next;
    const std::int32_t previous = node.previous;
    if (next != kNone) (*this)[next].previous = previous;
    if (previous != kNone) {
      (*this)[previous].next = next;
    } else {
      (*this)[parent].first_child = next;
      if (next == kNone) (*this)[parent].child_labels = 0;
    }
    free_.push_back(index);
    index = parent;
  }
}

bool SequenceTree::before(std::int32_t a, std::int32_t a_label, std::int32_t b,
                          std::int32_t b_label) const {
  const auto length = [this](std::int32_t node, std::int32_t label) {
    return (*this)[node].depth + (label != kNone ? 1 : 0);
  };
  const std::int32_t a_length = length(a, a_label);
  const std::int32_t b_length = length(b, b_label);
  const auto up = [this](std::int32_t& node, std::int32_t& label) {
    if (label != kNone) {
      label = kNone;
    } else {
      node = (*this)[node].parent;
    }
  };
  for (std::int32_t i = a_length; i > b_length; --i) up(a, a_label);
  for (std::int32_t i = b_length; i > a_length; --i) up(b, b_label);
  bool equal = true;
  bool smaller = false;
  while (a != b || a_label != b_label) {
    const std::int32_t a_last = a_label != kNone ? a_label : (*this)[a].label;
    const std::int32_t b_last = b_label != kNone ? b_label : (*this)[b].label;
    if (a_last != b_last) {  // the difference nearest to the root decides
      equal = false;
      smaller = a_last < b_last;
    }
    up(a, a_label);
    up(b, b_label);
  }
  return equal ? a_length < b_length : smaller;
}

std::vector<std::int32_t> SequenceTree::sequence(std::int32_t index) const {
  std::vector<std::int32_t> labels;
  for (; index != kRoot; index = (*this)[index].parent) labels.push_back((*this)[index].label);
  std::reverse(labels.begin(), labels.end());
  return labels;
}

}  // namespace word_beam
