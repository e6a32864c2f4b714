// The class sequences of all beams as one tree, in which common beginnings are stored once.
#pragma once

#include <cstdint>
#include <vector>

namespace word_beam {

class SequenceTree {
 public:
  static constexpr std::int32_t kRoot = 0;
  static constexpr std::int32_t kNone = -1;
  static constexpr std::int32_t kComing = -2;  // for a new beam that has no slot yet

  struct alignas(32) Node {  // two to a cache line
    std::int32_t parent = kNone;
    std::int32_t label = kNone;
    std::int32_t depth = 0;
    std::int32_t slot = kNone;  // number, in Beams, of the beam that has this sequence
    std::int32_t first_child = kNone;
    std::int32_t next = kNone;  // sibling, in the list of the parent's children
    std::int32_t previous = kNone;
    std::uint32_t child_labels = 0;  // a bit per label modulo 32: if it is 0, no child has it
  };

  void clear();
  Node& operator[](std::int32_t index) { return nodes_[static_cast<std::size_t>(index)]; }
  const Node& operator[](std::int32_t index) const {
    return nodes_[static_cast<std::size_t>(index)];
  }
  // Returns the node one class longer; creates it if it doesn't exist.
  std::int32_t child(std::int32_t parent, std::int32_t label);
  // Frees a node and then its ancestors, up to the first one that has a beam or another child.
  void release(std::int32_t index);
  // Whether the sequence of `a`, followed by `a_label` unless that is kNone, comes before that of
  // `b` and `b_label` in lexicographic order. A sequence comes before its continuations.
  bool before(std::int32_t a, std::int32_t a_label, std::int32_t b, std::int32_t b_label) const;
  // Returns the classes from the root to a node.
  std::vector<std::int32_t> sequence(std::int32_t index) const;

 private:
  std::vector<Node> nodes_;
  std::vector<std::int32_t> free_;
};

}  // namespace word_beam
