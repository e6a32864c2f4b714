// The class sequences of all beams as one tree that holds each of them once.
#pragma once

#include <cstdint>
#include <vector>

namespace word_beam {

class SequenceTree {
 public:
  static constexpr std::int32_t kRoot = 0;
  static constexpr std::int32_t kNone = -1;
  static constexpr std::int32_t kComing = -2;  // the slot of a beam that is about to get one

  struct alignas(32) Node {  // two to a cache line
    std::int32_t parent = kNone;
    std::int32_t label = kNone;
    std::int32_t depth = 0;
    std::int32_t slot = kNone;  // of the beam that has this sequence
    std::int32_t first_child = kNone;
    std::int32_t next = kNone;  // among the parent's children
    std::int32_t previous = kNone;
    std::uint32_t child_labels = 0;  // by label modulo 32; without a bit there is no such child
  };

  void clear();
  Node& operator[](std::int32_t index) { return nodes_[static_cast<std::size_t>(index)]; }
  const Node& operator[](std::int32_t index) const {
    return nodes_[static_cast<std::size_t>(index)];
  }
  // The node one class longer, made if it does not exist.
  std::int32_t child(std::int32_t parent, std::int32_t label);
  // Frees a node and its ancestors as far as they have neither a beam nor children.
  void release(std::int32_t index);
  // Whether the sequence of `a`, and of `a_label` behind it unless that is kNone, stands before
  // that of `b` in lexicographic order, a shorter one before its continuations.
  bool before(std::int32_t a, std::int32_t a_label, std::int32_t b, std::int32_t b_label) const;
  // The classes from the root to a node.
  std::vector<std::int32_t> sequence(std::int32_t index) const;

 private:
  std::vector<Node> nodes_;
  std::vector<std::int32_t> free_;
};

}  // namespace word_beam
