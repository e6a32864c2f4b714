// The dictionary as a prefix tree in flat arrays.
#pragma once

#include <cstdint>
#include <vector>

namespace word_beam {

// A prefix of one or more words, or any classes that no word begins with. The words that begin with it have the ids word_begin to
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

  // Takes words as class sequences. In an open dictionary, all other class sequences are words too,
  // with one id for all of them. Throws std::invalid_argument for an empty word or no words.
  explicit Dictionary(std::vector<std::vector<std::int32_t>> words, bool is_open = false);

  const Prefix& prefix(std::int32_t index) const {
    return prefixes_[static_cast<std::size_t>(index)];
  }
  // Returns the prefix one class longer; kNone if no word begins so.
  std::int32_t child(std::int32_t index, std::int32_t label) const;
  std::int32_t num_words() const { return static_cast<std::int32_t>(words_.size()); }
  bool is_open() const { return other_ != kNone; }
  // Returns the id of words that an open dictionary doesn't list.
  std::int32_t other_word() const { return num_words(); }
  // Returns the id of the word that a prefix is if nothing follows.
  std::int32_t word_of(std::int32_t index) const {
    const Prefix& ended = prefix(index);
    return ended.terminal || !is_open() ? ended.word_begin : other_word();
  }
  // Returns a word's classes. Ids are in the lexicographic order of the class sequences.
  const std::vector<std::int32_t>& word(std::int32_t id) const {
    return words_[static_cast<std::size_t>(id)];
  }

 private:
  std::int32_t listed_child(std::int32_t index, std::int32_t label) const;
  void add_children(std::int32_t index, std::size_t depth);

  std::vector<std::vector<std::int32_t>> words_;
  std::vector<Prefix> prefixes_;  // the children of a prefix are adjacent and sorted by label
  std::int32_t other_ = kNone;    // the prefix of all words that an open dictionary doesn't list
};

}  // namespace word_beam
