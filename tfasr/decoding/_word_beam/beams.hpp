// The beams of one frame, in parallel arrays. A beam's slot is its index in them.
#pragma once

#include <cstdint>
#include <vector>

#include "dictionary.hpp"
#include "language_model.hpp"
#include "sequence_tree.hpp"

namespace word_beam {

// What a class means: no word contains it (kGap), words contain it (kInside), or it starts a word
// that needs no gap before (kStart).
enum Kind : std::uint8_t { kGap, kInside, kStart };

// What follows from a beam's class sequence alone, so it never changes.
struct BeamState {
  std::int32_t node = SequenceTree::kRoot;
  std::int32_t prefix = Dictionary::kRoot;
  double weight = 1.0;  // of the language model, see Closed
  double factor = 1.0;  // by which the language model multiplied the probability at the last class
  LmState lm;
};

// What every frame reads or changes. It is kept apart so that a cache line holds two beams.
struct Mass {
  double p_blank = 0.0;
  double p_non_blank = 0.0;
  double total = 0.0;
  std::int32_t last = -1;         // the sequence's last class
  std::int32_t parent_slot = -1;  // of the beam whose sequence is one class shorter; -1: none
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
  // Replaces the beams in the slots `leaving`, which must be in rising order, by newcomers. Further
  // newcomers get new slots. A newcomer's node must be marked as kComing.
  void exchange(const std::vector<std::int32_t>& leaving, const std::vector<Newcomer>& coming,
                std::size_t num_coming);
  // Ends a frame: `next` becomes `now`.
  void advance() { now.swap(next); }

  // Whether a class may extend the sequence and the longer sequence isn't a beam already.
  bool is_open(std::size_t slot, std::int32_t label) const {
    return (open_[slot * num_words_ + static_cast<std::size_t>(label) / 64] >>
            (static_cast<unsigned>(label) % 64)) & 1U;
  }

  // The same for the first 64 classes, one bit each.
  std::uint64_t open_labels(std::size_t slot) const { return open_[slot * num_words_]; }

  std::vector<Mass> now;
  std::vector<Mass> next;                 // of the frame being computed
  std::vector<std::uint8_t> may_gap;      // whether a gap or a new word may follow
  std::vector<std::uint8_t> is_closed;    // whether `closed` is known
  std::vector<Closed> closed;             // the language model's result if the word ends here
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
  std::vector<std::int32_t> gap_labels_;  // gaps, and first classes of words that need no gap
  std::uint64_t gap_mask_ = 0;       // a bit for each of them that is below 64
  std::size_t num_words_;            // of 64 bits, for one bit per class
  std::vector<std::uint64_t> open_;  // num_words_ per slot
  std::size_t size_ = 0;
};

}  // namespace word_beam
