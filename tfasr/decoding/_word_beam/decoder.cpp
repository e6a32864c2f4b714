#include "decoder.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace word_beam {
namespace {

// By rounding, the logarithm of a probability near 1 may be this far above 0.
constexpr float kRounding = 1e-4F;

void check_frames(const Batch& batch, std::int64_t utterance) {
  const std::int64_t begin = utterance * batch.time * batch.classes;
  const std::int64_t end = begin + batch.lengths[utterance] * batch.classes;
  for (std::int64_t i = begin; i < end; ++i) {
    if (batch.log_probs[i] <= kRounding) continue;  // false for NaN too
    std::ostringstream message;
    message << "log_probs must hold natural logarithms of probabilities: at most 0, not NaN. "
            << "Received: log_probs[" << utterance << ", " << (i - begin) / batch.classes << ", "
            << (i - begin) % batch.classes << "]=" << batch.log_probs[i] << ".";
    throw std::invalid_argument(message.str());
  }
}

void check(const Batch& batch, std::int64_t num_classes) {
  if (batch.size < 0 || batch.time < 0 || batch.classes != num_classes) {
    throw std::invalid_argument("log_probs must have one class per label and the blank.");
  }
  for (std::int64_t i = 0; i < batch.size; ++i) {
    if (batch.lengths[i] < 0 || batch.lengths[i] > batch.time) {
      throw std::invalid_argument("lengths must lie within log_probs.");
    }
    check_frames(batch, i);
  }
}

}  // namespace

Decoder::Decoder(Dictionary dictionary, std::shared_ptr<const LanguageModel> language_model,
                 Problem problem)
    : dictionary_(std::move(dictionary)),
      language_model_(std::move(language_model)),
      problem_(std::move(problem)) {
  for (std::int32_t id = 0; id < dictionary_.num_words(); ++id) {
    bool is_first = true;
    for (const std::int32_t label : dictionary_.word(id)) {
      if (label < 0 || label >= problem_.blank() ||
          problem_.kinds[static_cast<std::size_t>(label)] == kGap) {
        throw std::invalid_argument("The dictionary's words must be made of word classes.");
      }
      if (!is_first && !problem_.is_inside(label)) {
        throw std::invalid_argument("A class that begins words must not be inside one.");
      }
      is_first = false;
    }
  }
  for (const std::uint8_t kind : problem_.kinds) {
    if (kind > kStart) throw std::invalid_argument("A class's kind must be 0, 1 or 2.");
  }
  if (problem_.beam_width < 1) throw std::invalid_argument("The beam width must be at least 1.");
  if (language_model_ && !language_model_->fits(dictionary_)) {
    throw std::invalid_argument("The language model must know the dictionary's words.");
  }
  problem_.dictionary = &dictionary_;
  problem_.language_model = language_model_.get();
}

std::unique_ptr<Search> Decoder::borrow() const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Search> search = std::move(idle_.back());
      idle_.pop_back();
      return search;
    }
  }
  return std::make_unique<Search>(problem_);
}

void Decoder::give_back(std::unique_ptr<Search> search) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(search));
}

std::vector<std::vector<Result>> Decoder::decode(const Batch& batch, std::size_t n_best,
                                                 int num_threads) const {
  check(batch, problem_.blank() + 1);
  const auto size = static_cast<std::size_t>(batch.size);
  std::vector<std::vector<Result>> results(size);
  std::vector<std::int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  // Decodes the longest first, so that all threads finish at about the same time.
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return batch.lengths[a] > batch.lengths[b];
  });

  std::atomic<std::size_t> next{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      std::unique_ptr<Search> search = borrow();
      for (std::size_t i = next++; i < size; i = next++) {
        const std::int64_t n = order[i];
        results[static_cast<std::size_t>(n)] = search->decode(
            batch.log_probs + n * batch.time * batch.classes, batch.lengths[n], n_best);
      }
      give_back(std::move(search));
    } catch (...) {
      next = size;
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  const std::size_t wanted = std::min(static_cast<std::size_t>(std::max(num_threads, 1)), size);
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < wanted; ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // the system refuses more threads: go on with those that were started
    }
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  return results;
}

Utterance::Utterance(const Decoder& decoder) : decoder_(decoder), search_(decoder.borrow()) {
  search_->start();
}

Utterance::~Utterance() { decoder_.give_back(std::move(search_)); }

void Utterance::hear(const float* log_probs, std::int64_t frames, std::int64_t classes) {
  check(Batch{log_probs, &frames, 1, frames, classes}, decoder_.problem_.blank() + 1);
  search_->hear(log_probs, frames);
}

std::vector<Result> Utterance::results(std::size_t n_best) { return search_->results(n_best); }

}  // namespace word_beam
