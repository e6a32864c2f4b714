// The dictionary as a prefix tree in flat arrays.
#pragma once

#include <cstdint>
#include <vector>

namespace word_beam {

// A prefix of one or more words. The words that begin with it have the ids word_begin to
// word_end - 1. If `terminal`, the prefix is itself a word, whose id is word_begin.
struct Prefix {
  std::uint64_t next_labels = 0;  // one bit per label below 64 that continues the prefix
  std::int32_t first_child = 0;
  std::int32_t num_children = 0;
  std::int32_t word_begin = 0;
  std::int32_t word_end = 0;
  std::int32_t label = -1;  // the class that leads here from the shorter prefix
  bool terminal = false;
};

class Dictionary {
 public:
  static constexpr std::int32_t kRoot = 0;
  static constexpr std::int32_t kNone = -1;

  // Takes words as class sequences. Throws std::invalid_argument for an empty word or no words.
  explicit Dictionary(std::vector<std::vector<std::int32_t>> words);

  const Prefix& prefix(std::int32_t index) const {
    return prefixes_[static_cast<std::size_t>(index)];
  }
  // Returns the prefix one class longer, or kNone.
  std::int32_t child(std::int32_t index, std::int32_t label) const;
  std::int32_t num_words() const { return static_cast<std::int32_t>(words_.size()); }
  // Returns a word's classes. Ids are in the lexicographic order of the class sequences.
  const std::vector<std::int32_t>& word(std::int32_t id) const {
    return words_[static_cast<std::size_t>(id)];
  }

 private:
  void add_children(std::int32_t index, std::size_t depth);

  std::vector<std::vector<std::int32_t>> words_;
  std::vector<Prefix> prefixes_;  // the children of a prefix are adjacent and sorted by label
};

}  // namespace word_beam
