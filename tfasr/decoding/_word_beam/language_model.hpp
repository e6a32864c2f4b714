// What a beam's words are worth.
#pragma once

#include <cstdint>
#include <vector>

namespace word_beam {

// Where a beam stands in the language model: all that later words depend on.
struct LmState {
  std::int32_t context = -1;  // the last complete word, or an outside model's state; -1 at the start
  std::int32_t num_words = 0;
  double log_product = 0.0;  // of the complete words' probabilities; 0 under an outside model
};

// A word that was closed: the state after it, and what it did to the beam.
struct Closed {
  LmState state;
  double factor = 1.0;  // multiplies the beam's probability, for good
  double weight = 1.0;  // ranks the beam from here to the next change
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  // Whether it knows the words 0..num_words-1.
  virtual bool fits(std::int32_t num_words) const = 0;
  virtual Closed close(const LmState& state, std::int32_t word) const = 0;
  // Whether the words that a prefix can still become weigh on the beam.
  virtual bool forecasts() const { return false; }
  // The weight inside a word that will be one of the words [begin, end); 1 if nothing is forecast.
  virtual double ahead(const LmState&, std::int32_t /*begin*/, std::int32_t /*end*/) const {
    return 1.0;
  }
  // No forecast from this state exceeds it.
  virtual double ahead_limit(const LmState&) const { return 1.0; }
  // Whether the last word and the end of the sentence are scored too.
  virtual bool scores_end() const { return false; }
  virtual double end_factor(const LmState&) const { return 1.0; }
};

struct Bigram {
  std::int32_t first = 0;
  std::int32_t second = 0;
  double count = 0.0;
};

// Add-k smoothed bigrams; a beam weighs the n-th root of its n words' probability.
class BigramModel : public LanguageModel {
 public:
  // unigrams: counts by word id. sample: words drawn per forecast, 0 for the exact sum.
  BigramModel(std::vector<double> unigrams, std::vector<Bigram> bigrams, double k, bool forecast,
              std::int32_t sample, std::uint64_t seed);

  bool fits(std::int32_t num_words) const override {
    return unigrams_.size() == static_cast<std::size_t>(num_words);
  }
  Closed close(const LmState& state, std::int32_t word) const override;
  bool forecasts() const override { return forecast_; }
  double ahead(const LmState& state, std::int32_t begin, std::int32_t end) const override;
  double ahead_limit(const LmState& state) const override;

  // P(word | previous), or P(word) where previous is -1.
  double probability(std::int32_t previous, std::int32_t word) const;
  // The sum of probability() over [begin, end).
  double probability_sum(std::int32_t previous, std::int32_t begin, std::int32_t end) const;
  // The same estimated from `sample` of the words.
  double sampled_sum(std::int32_t previous, std::int32_t begin, std::int32_t end) const;

 private:
  double count_before(std::int32_t first, std::int32_t word) const;

  std::vector<double> unigrams_;
  std::vector<double> unigrams_before_;    // counts of all smaller words
  std::vector<std::int32_t> row_begin_;    // of each first word in the arrays below
  std::vector<std::int32_t> seconds_;      // sorted within a row
  std::vector<double> counts_;
  std::vector<double> counts_before_;      // of a row's smaller words
  double k_;
  bool forecast_;
  std::int32_t sample_;
  std::uint64_t seed_;
};

}  // namespace word_beam
