// Decodes random problems in every mode and checks properties of the results; see sanitize.mk.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "hot_words.hpp"
#include "outside_model.hpp"

namespace {

using namespace word_beam;

class Source {
 public:
  explicit Source(std::uint64_t seed) : random_(seed) {}
  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  bool one_in(int n) { return below(n) == 0; }

 private:
  std::mt19937_64 random_;
};

std::vector<std::vector<std::int32_t>> words_of(Source& source, int labels) {
  std::vector<std::vector<std::int32_t>> words(static_cast<std::size_t>(source.below(30)));
  for (auto& word : words) {
    word.resize(static_cast<std::size_t>(source.one_in(50) ? 0 : 1 + source.below(6)));
    for (auto& label : word) label = source.below(labels) - (source.one_in(500) ? 1 : 0);
  }
  return words;
}

float log_prob(Source& source) {
  switch (source.below(12)) {
    case 0: return 0.0F;
    case 1: return -std::numeric_limits<float>::infinity();
    case 2: return -std::numeric_limits<float>::max();
    case 3: return -static_cast<float>(source.below(2000));
    case 4: return -std::numeric_limits<float>::denorm_min();
    case 5: return source.one_in(300) ? std::nanf("") : -1.0F;
    case 6: return source.one_in(300) ? 1.0F : -1.0F;
    default: return -0.01F * static_cast<float>(source.below(1000));
  }
}

std::shared_ptr<LanguageModel> model_of(Source& source, std::int32_t num_words, bool is_open) {
  const int kind = is_open && !source.one_in(30) ? 5 * source.below(2) : source.below(6);
  if (kind == 0) return nullptr;
  if (kind == 5) {
    std::vector<std::pair<std::int32_t, double>> bonuses;
    for (std::int32_t word = 0; word < num_words + (source.one_in(40) ? 1 : 0); ++word) {
      if (source.one_in(3)) bonuses.emplace_back(word, source.below(201) - 100.0);
    }
    auto model = is_open || source.one_in(2) ? nullptr : model_of(source, num_words, is_open);
    return std::make_shared<HotWords>(std::move(bonuses), std::move(model));
  }
  if (kind == 1) {
    const int states = 1 + source.below(5);
    return std::make_shared<OutsideModel>(
        [states, bad = source.one_in(30)](std::int32_t state, std::int32_t word) {
          const double log_factor = bad ? std::nan("") : -0.5 * (word % 7) + 0.1 * (state % 3);
          return std::make_pair((state + 1 + word) % states, log_factor);
        },
        [](std::int32_t state) { return -0.1 * state; });
  }
  std::vector<double> unigrams(static_cast<std::size_t>(num_words + (source.one_in(40) ? 1 : 0)));
  for (double& count : unigrams) count = source.below(4);
  std::vector<Bigram> bigrams(static_cast<std::size_t>(source.below(40)));
  for (Bigram& bigram : bigrams) {
    bigram = {source.below(num_words), source.below(num_words + (source.one_in(400) ? 1 : 0)),
              static_cast<double>(source.below(3))};
  }
  return std::make_shared<BigramModel>(std::move(unigrams), std::move(bigrams),
                                       0.1 * source.below(3), kind > 2, kind > 3 ? 4 : 0, 1);
}

[[noreturn]] void fail(const char* what, std::uint64_t seed) {
  std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), what);
  std::abort();
}

bool equal(const std::vector<std::vector<Result>>& a, const std::vector<std::vector<Result>>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    for (std::size_t n = 0; n < a[i].size(); ++n) {
      if (a[i][n].labels != b[i][n].labels || a[i][n].score != b[i][n].score) return false;
    }
  }
  return a.size() == b.size();
}

// Returns whether all checks of this problem passed.
bool run(std::uint64_t seed) {
  Source source(seed);
  const int labels = 1 + (source.one_in(10) ? source.below(150) : source.below(8));
  Problem problem;
  problem.kinds.resize(static_cast<std::size_t>(labels));
  for (auto& kind : problem.kinds) kind = source.one_in(6) ? kGap : kInside;
  problem.separator = source.below(labels + 1) - 1;
  problem.space = source.below(labels + 1) - 1;
  problem.beam_width = source.one_in(20) ? source.below(300) : source.below(12);
  problem.recombine = source.one_in(3);

  const std::int64_t time = source.below(source.one_in(20) ? 300 : 15);
  const std::int64_t size = source.below(5);
  std::vector<float> log_probs(static_cast<std::size_t>(size * time * (labels + 1)));
  for (float& value : log_probs) value = log_prob(source);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(size));
  for (auto& length : lengths) {
    length = source.below(static_cast<int>(time) + 1) + (source.one_in(200) ? 1 : 0);
  }
  const Batch batch{log_probs.data(), lengths.data(), size, time, labels + 1};
  try {
    const auto words = words_of(source, labels);
    if (source.one_in(3)) {  // a class that only begins words needs no gap before
      for (const auto& word : words) {
        for (const auto label : word) {
          if (label >= 0 && label < labels) problem.kinds[static_cast<std::size_t>(label)] = kStart;
        }
      }
      for (const auto& word : words) {
        for (std::size_t i = 1; i < word.size(); ++i) {
          if (word[i] < 0 || word[i] >= labels) continue;
          problem.kinds[static_cast<std::size_t>(word[i])] = kInside;
        }
      }
    }
    Dictionary dictionary(words, source.one_in(4));
    const auto model = model_of(source, dictionary.num_words(), dictionary.is_open());
    const Decoder decoder(std::move(dictionary), model, problem);
    const std::size_t n_best = 1 + static_cast<std::size_t>(source.below(20));
    const auto once = decoder.decode(batch, n_best, 1);
    if (!equal(once, decoder.decode(batch, n_best, 3))) fail("threads change the result", seed);
    for (const std::vector<Result>& results : once) {
      if (results.empty() || results.size() > n_best) fail("wrong number of results", seed);
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (std::isnan(results[i].score)) fail("a score is no number", seed);
        for (const std::int32_t label : results[i].labels) {
          if (label < 0 || label >= labels) fail("a label is out of range", seed);
        }
      }
    }
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t runs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20000;
  const std::uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  std::uint64_t sound = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) sound += run(seed);
  std::printf("%llu random problems, %llu of them sound: no fault\n",
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(sound));
  return 0;
}
