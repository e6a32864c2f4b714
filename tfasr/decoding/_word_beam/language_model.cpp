#include "language_model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace word_beam {
namespace {

double log_or_never(double probability) {
  return probability > 0.0 ? std::log(probability) : -std::numeric_limits<double>::infinity();
}

// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

bool by_words(const Bigram& a, const Bigram& b) {
  return a.first != b.first ? a.first < b.first : a.second < b.second;
}

}  // namespace

BigramModel::BigramModel(std::vector<double> unigrams, std::vector<Bigram> bigrams, double k,
                         bool forecast, std::int32_t sample, std::uint64_t seed)
    : unigrams_(std::move(unigrams)), k_(k), forecast_(forecast), sample_(sample), seed_(seed) {
  const auto num_words = static_cast<std::int32_t>(unigrams_.size());
  const auto outside = [&](std::int32_t word) { return word < 0 || word >= num_words; };
  const auto wrong = [](double count) { return !(count >= 0.0) || std::isinf(count); };
  if (std::any_of(unigrams_.begin(), unigrams_.end(), wrong) || wrong(k_)) {
    throw std::invalid_argument("Counts and smoothing must be finite and at least 0.");
  }
  for (const Bigram& bigram : bigrams) {
    if (wrong(bigram.count)) throw std::invalid_argument("Counts must be at least 0.");
    if (outside(bigram.first) || outside(bigram.second)) {
      throw std::invalid_argument("A bigram must be made of words of the dictionary.");
    }
  }
  std::sort(bigrams.begin(), bigrams.end(), by_words);
  unigrams_before_.assign(1, 0.0);
  for (const double count : unigrams_) unigrams_before_.push_back(unigrams_before_.back() + count);
  row_begin_.assign(unigrams_.size() + 1, 0);
  for (const Bigram& bigram : bigrams) ++row_begin_[static_cast<std::size_t>(bigram.first) + 1];
  for (std::size_t i = 1; i < row_begin_.size(); ++i) row_begin_[i] += row_begin_[i - 1];
  for (std::size_t i = 0; i < bigrams.size(); ++i) {
    const bool same_row = i > 0 && bigrams[i - 1].first == bigrams[i].first;
    seconds_.push_back(bigrams[i].second);
    counts_before_.push_back(same_row ? counts_before_.back() + counts_.back() : 0.0);
    counts_.push_back(bigrams[i].count);
  }
}

// The sum of counts of the bigrams of `first` and a word whose id is smaller than `word`.
double BigramModel::count_before(std::int32_t first, std::int32_t word) const {
  const auto row = seconds_.begin() + row_begin_[static_cast<std::size_t>(first)];
  const auto row_end = seconds_.begin() + row_begin_[static_cast<std::size_t>(first) + 1];
  const auto found = std::lower_bound(row, row_end, word);
  const auto index = static_cast<std::size_t>(found - seconds_.begin());
  if (found != row_end) return counts_before_[index];
  return row == row_end ? 0.0 : counts_before_[index - 1] + counts_[index - 1];
}

double BigramModel::probability(std::int32_t previous, std::int32_t word) const {
  if (previous < 0) {
    const double total = unigrams_before_.back();
    return total > 0.0 ? unigrams_[static_cast<std::size_t>(word)] / total : 0.0;
  }
  const double seen = unigrams_[static_cast<std::size_t>(previous)];
  if (!(seen > 0.0)) return 0.0;
  const auto row = seconds_.begin() + row_begin_[static_cast<std::size_t>(previous)];
  const auto row_end = seconds_.begin() + row_begin_[static_cast<std::size_t>(previous) + 1];
  const auto found = std::lower_bound(row, row_end, word);
  const bool together = found != row_end && *found == word;
  const double count = together ? counts_[static_cast<std::size_t>(found - seconds_.begin())] : 0.0;
  return (count + k_) / (seen + k_ * static_cast<double>(unigrams_.size()));
}

double BigramModel::probability_sum(std::int32_t previous, std::int32_t begin,
                                    std::int32_t end) const {
  if (previous < 0) {
    const double total = unigrams_before_.back();
    const double count = unigrams_before_[static_cast<std::size_t>(end)] -
                         unigrams_before_[static_cast<std::size_t>(begin)];
    return total > 0.0 ? count / total : 0.0;
  }
  const double seen = unigrams_[static_cast<std::size_t>(previous)];
  if (!(seen > 0.0)) return 0.0;
  const double count = count_before(previous, end) - count_before(previous, begin);
  return (count + k_ * static_cast<double>(end - begin)) /
         (seen + k_ * static_cast<double>(unigrams_.size()));
}

double BigramModel::sampled_sum(std::int32_t previous, std::int32_t begin,
                                std::int32_t end) const {
  const std::int64_t size = static_cast<std::int64_t>(end) - begin;
  if (sample_ <= 0 || size < sample_) return probability_sum(previous, begin, end);
  // Random numbers depend only on the arguments, so results don't depend on threads and order.
  std::uint64_t random = seed_ ^ (static_cast<std::uint64_t>(static_cast<std::uint32_t>(previous))
                                  << 32) ^ static_cast<std::uint32_t>(begin);
  random += static_cast<std::uint64_t>(size) * 0x9e3779b97f4a7c15ULL;
  double sum = 0.0;
  // Draws one word from each of `sample` equal parts of [begin, end), so no word is drawn twice.
  for (std::int32_t i = 0; i < sample_; ++i) {
    const std::int64_t from = begin + size * i / sample_;
    const std::int64_t to = begin + size * (i + 1) / sample_;
    const auto offset = static_cast<std::int64_t>(
        next_random(random) % static_cast<std::uint64_t>(to - from));
    sum += probability(previous, static_cast<std::int32_t>(from + offset)) *
           static_cast<double>(to - from);
  }
  return sum;
}

Closed BigramModel::close(const LmState& state, std::int32_t word) const {
  Closed closed;
  closed.state.context = word;
  closed.state.num_words = state.num_words + 1;
  closed.state.log_product = state.log_product + log_or_never(probability(state.context, word));
  closed.weight = std::exp(closed.state.log_product / closed.state.num_words);
  return closed;
}

double BigramModel::ahead(const LmState& state, std::int32_t begin, std::int32_t end) const {
  const double sum = std::min(1.0, sampled_sum(state.context, begin, end));
  return std::exp((state.log_product + log_or_never(sum)) / (state.num_words + 1));
}

double BigramModel::ahead_limit(const LmState& state) const {
  return std::exp(state.log_product / (state.num_words + 1));
}

}  // namespace word_beam
