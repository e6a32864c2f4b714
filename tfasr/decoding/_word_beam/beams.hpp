// The beams of one frame: parallel arrays without holes, one slot per beam.
#pragma once

#include <cstdint>
#include <vector>

#include "dictionary.hpp"
#include "language_model.hpp"
#include "sequence_tree.hpp"

namespace word_beam {

// What a class means: no word has it, a word has it, or a word begins with it, without a gap before.
enum Kind : std::uint8_t { kGap, kInside, kStart };

// What a class sequence means; it never changes while the beam lives.
struct BeamState {
  std::int32_t node = SequenceTree::kRoot;
  std::int32_t prefix = Dictionary::kRoot;
  double weight = 1.0;  // the language model's, at this point
  double factor = 1.0;  // what the last class multiplied the probability by
  LmState lm;
};

// What every frame changes or reads, side by side: two beams share a cache line.
struct Mass {
  double p_blank = 0.0;
  double p_non_blank = 0.0;
  double total = 0.0;
  std::int32_t last = -1;         // class
  std::int32_t parent_slot = -1;  // of the sequence one shorter, if that is a beam
};

struct Newcomer {
  BeamState state;
  double p_blank = 0.0;
  double p_non_blank = 0.0;
};

class Beams {
 public:
  Beams(SequenceTree& tree, const Dictionary& dictionary,
        const std::vector<std::uint8_t>& kinds);

  std::size_t size() const { return size_; }
  void clear() { size_ = 0; }
  // Puts newcomers into the slots of beams that leave, in rising order, then behind the last one.
  // The node of a newcomer must be marked as coming.
  void exchange(const std::vector<std::int32_t>& leaving, const std::vector<Newcomer>& coming,
                std::size_t num_coming);
  // Makes the frame being computed the present one.
  void advance() { now.swap(next); }

  // Whether the sequence may grow by a class and the longer one is not itself a beam.
  bool is_open(std::size_t slot, std::int32_t label) const {
    return (open_[slot * num_words_ + static_cast<std::size_t>(label) / 64] >>
            (static_cast<unsigned>(label) % 64)) & 1U;
  }

  // The same for the first 64 classes, one bit each.
  std::uint64_t open_labels(std::size_t slot) const { return open_[slot * num_words_]; }

  std::vector<Mass> now;
  std::vector<Mass> next;                 // of the frame being computed
  std::vector<std::uint8_t> may_gap;      // whether a gap or another word may follow
  std::vector<std::uint8_t> is_closed;    // whether `closed` is known
  std::vector<Closed> closed;             // what closing the word at this point does
  std::vector<BeamState> states;

 private:
  void grow();
  void allow(std::size_t slot);
  void set_open(std::size_t slot, std::int32_t label, bool open);
  void enter(std::size_t slot, const Newcomer& newcomer);
  void leave(std::size_t slot);
  void move(std::size_t from, std::size_t to);

  SequenceTree& tree_;
  const Dictionary& dictionary_;
  std::vector<std::int32_t> gap_labels_;  // and the first classes of words that need no gap
  std::uint64_t gap_mask_ = 0;       // of those below 64
  std::size_t num_words_;            // of 64 bits that hold one bit per class
  std::vector<std::uint64_t> open_;  // num_words_ per slot
  std::size_t size_ = 0;
};

}  // namespace word_beam
