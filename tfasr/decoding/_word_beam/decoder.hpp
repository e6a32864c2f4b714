// Decodes a batch of utterances with several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "search.hpp"

namespace word_beam {

class Utterance;

// A dense array (batch, time, classes) of natural logarithms of probabilities, and the number of
// valid frames of each utterance.
struct Batch {
  const float* log_probs = nullptr;
  const std::int64_t* lengths = nullptr;
  std::int64_t size = 0;
  std::int64_t time = 0;
  std::int64_t classes = 0;
};

class Decoder {
 public:
  // Throws std::invalid_argument if the arguments don't fit together.
  Decoder(Dictionary dictionary, std::shared_ptr<const LanguageModel> language_model, Problem problem);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Returns the results of each utterance, the best first; see Search::decode. Several threads may
  // call this. Throws std::invalid_argument for a length outside 0..time, NaN, or a positive
  // logarithm (1e-4 allows for rounding).
  std::vector<std::vector<Result>> decode(const Batch& batch, std::size_t n_best,
                                          int num_threads) const;

 private:
  friend class Utterance;
  std::unique_ptr<Search> borrow() const;
  void give_back(std::unique_ptr<Search> search) const;

  Dictionary dictionary_;
  std::shared_ptr<const LanguageModel> language_model_;
  Problem problem_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Search>> idle_;  // kept because their memory is reused
};

// One utterance whose frames arrive in parts. The decoder must outlive it.
class Utterance {
 public:
  explicit Utterance(const Decoder& decoder);
  ~Utterance();
  Utterance(const Utterance&) = delete;
  Utterance& operator=(const Utterance&) = delete;

  // Adds frames. If it throws std::invalid_argument, as Decoder::decode does, it has added none.
  void hear(const float* log_probs, std::int64_t frames, std::int64_t classes);
  std::vector<Result> results(std::size_t n_best);

 private:
  const Decoder& decoder_;
  std::unique_ptr<Search> search_;
};

}  // namespace word_beam
