// Language models, which score a beam's words.
#pragma once

#include <cstdint>
#include <vector>

#include "dictionary.hpp"

namespace word_beam {

// A beam's state in the language model: everything that later words' scores depend on.
struct LmState {
  std::int32_t context = -1;  // last complete word, or an outside model's state; -1 at the start
  std::int32_t num_words = 0;
  double log_product = 0.0;  // of the complete words' probabilities; 0 for an outside model
};

// The result of closing (completing) a word: the state after it, and its effect on the beam.
struct Closed {
  LmState state;
  double factor = 1.0;  // multiplies the beam's probability permanently
  double weight = 1.0;  // multiplies the beam's score until the next change of weight
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  // Whether the model knows the dictionary's words, and, if that is open, what to do with others.
  virtual bool fits(const Dictionary& dictionary) const = 0;
  // word: the id of a word in the dictionary, or Dictionary::other_word().
  virtual Closed close(const LmState& state, std::int32_t word) const = 0;
  // The same for the last word, if the utterance ends before the word does.
  virtual Closed close_unfinished(const LmState& state, std::int32_t word) const {
    return close(state, word);
  }
  // Whether an incomplete word is scored too, by the words that it can still become.
  virtual bool forecasts() const { return false; }
  // The weight inside a word that can become any of [begin, end); 1 if the model doesn't forecast.
  virtual double ahead(const LmState&, std::int32_t /*begin*/, std::int32_t /*end*/) const {
    return 1.0;
  }
  // An upper bound on `ahead` in this state.
  virtual double ahead_limit(const LmState&) const { return 1.0; }
  // Whether the last word and the sentence's end are scored after the last frame.
  virtual bool scores_end() const { return false; }
  virtual double end_factor(const LmState&) const { return 1.0; }
};

struct Bigram {
  std::int32_t first = 0;
  std::int32_t second = 0;
  double count = 0.0;
};

// Add-k smoothed bigrams. A beam's weight is the n-th root of its n words' probability.
class BigramModel : public LanguageModel {
 public:
  // unigrams: counts by word id. sample: the number of words from which a forecast is estimated; 0
  // for the exact sum over all words.
  BigramModel(std::vector<double> unigrams, std::vector<Bigram> bigrams, double k, bool forecast,
              std::int32_t sample, std::uint64_t seed);

  bool fits(const Dictionary& dictionary) const override {
    return !dictionary.is_open() &&
           unigrams_.size() == static_cast<std::size_t>(dictionary.num_words());
  }
  Closed close(const LmState& state, std::int32_t word) const override;
  bool forecasts() const override { return forecast_; }
  double ahead(const LmState& state, std::int32_t begin, std::int32_t end) const override;
  double ahead_limit(const LmState& state) const override;

  // P(word | previous), or P(word) if previous is -1.
  double probability(std::int32_t previous, std::int32_t word) const;
  // The sum of probability() over [begin, end).
  double probability_sum(std::int32_t previous, std::int32_t begin, std::int32_t end) const;
  // An estimate of that sum from `sample` of the words.
  double sampled_sum(std::int32_t previous, std::int32_t begin, std::int32_t end) const;

 private:
  double count_before(std::int32_t first, std::int32_t word) const;

  std::vector<double> unigrams_;
  std::vector<double> unigrams_before_;    // for each word, the sum of counts of all smaller ids
  std::vector<std::int32_t> row_begin_;    // where a first word's row begins in the arrays below
  std::vector<std::int32_t> seconds_;      // the bigrams' second words, sorted within a row
  std::vector<double> counts_;
  std::vector<double> counts_before_;      // the sum of counts of smaller second words in the row
  double k_;
  bool forecast_;
  std::int32_t sample_;
  std::uint64_t seed_;
};

}  // namespace word_beam
