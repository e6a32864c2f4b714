// Word beam search over one utterance.
//
// Source: Scheidl, Fiel, Sablatnig, "Word beam search: a connectionist temporal classification
// decoding algorithm", ICFHR 2018.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "beams.hpp"
#include "dictionary.hpp"
#include "language_model.hpp"
#include "sequence_tree.hpp"

namespace word_beam {

// The settings of a search; shared by all threads and never changed.
struct Problem {
  const Dictionary* dictionary = nullptr;
  const LanguageModel* language_model = nullptr;  // nullptr: the dictionary only
  std::vector<std::uint8_t> kinds;  // a Kind for each class except the last, the blank
  std::int32_t separator = -1;  // class to remove from texts; -1: none
  std::int32_t space = -1;      // class of which texts keep one between words; -1: none
  std::int32_t beam_width = 1;
  bool recombine = false;

  bool is_inside(std::int32_t label) const {
    return kinds[static_cast<std::size_t>(label)] == kInside;
  }
  std::int32_t blank() const { return static_cast<std::int32_t>(kinds.size()); }
};

struct Result {
  std::vector<std::int32_t> labels;  // classes of the text, without separators and surplus spaces
  double score = 0.0;                // natural logarithm
};

class Search {
 public:
  explicit Search(const Problem& problem);

  // log_probs: frames x classes, without NaN. Returns 1 to n_best results with different labels,
  // the best first.
  std::vector<Result> decode(const float* log_probs, std::int64_t frames, std::size_t n_best);

  // The same for frames that arrive in parts: start an utterance, process its next frames, get the
  // results so far. `results` changes nothing.
  void start();
  void hear(const float* log_probs, std::int64_t frames);
  std::vector<Result> results(std::size_t n_best);

 private:
  static constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

  struct Class {
    double y;
    std::int32_t label;
  };
  struct Extension {
    std::int32_t slot;
    std::int32_t label;
  };
  // What a candidate's continuations depend on: the first four members decide which are possible,
  // the others how they score. A candidate is a beam, or a beam with one more class.
  struct Future {
    std::int32_t prefix;
    std::int32_t last;
    std::int32_t context;
    std::int32_t num_words;
    double log_product;
    double p_blank;
    double p_non_blank;

    bool is_that_of(const Future& other) const;
    bool dominates(const Future& other) const;
    std::size_t hash() const;
  };
  struct Last {
    double score;
    std::size_t above;  // number of candidates with a higher score
    std::size_t level;  // number of candidates with this score
  };
  struct Final {
    std::int32_t slot;
    double score;
    bool whole;
  };

  void step(const float* log_probs);
  void read_frame(const float* log_probs);
  void stay();
  void sort_classes();
  void set_floor(double floor);
  void extend();
  void extend_over(std::int32_t slot, const std::vector<Class>& classes, double limit,
                   bool is_inside);
  double word_weight_limit(std::int32_t slot) const;
  double gap_weight_limit(std::int32_t slot);
  const Closed& closed(std::int32_t slot);
  double grown_probability(std::int32_t slot, std::int32_t label) const;
  double grown_weight(std::int32_t slot, std::int32_t label, bool is_inside);
  BeamState grown_state(std::int32_t slot, std::int32_t label);
  std::int32_t grown_prefix(std::int32_t prefix, std::int32_t label) const;
  Last last_of(std::size_t width);
  void tighten();
  Future future_of_stay(std::size_t slot) const;
  Future future_of_extension(const Extension& extension);
  bool is_better(std::size_t a, std::size_t b) const;
  void recombine();
  void select();
  double admission();
  bool stands_before(std::size_t a, std::size_t b) const;
  void keep_first_of_ties(std::size_t room, double threshold);
  void commit();
  void rescale();
  std::vector<Final> rank();
  std::vector<std::int32_t> completed(std::int32_t slot) const;
  void clean(std::vector<std::int32_t>& labels) const;

  const Problem& problem_;
  std::int32_t num_labels_;
  bool weighs_;  // whether there is a language model
  SequenceTree tree_;
  Beams beams_;
  double log_scale_ = 0.0;

  // Used within one frame; members, so that their memory is reused for the next frame.
  std::vector<double> y_;
  std::vector<Class> word_classes_;  // of Kind kInside that may enter the beam; likeliest first
  std::vector<Class> gap_classes_;   // the same for the other kinds
  std::vector<double> scores_;  // of the unchanged beams, then of `extensions_`
  std::vector<Extension> extensions_;
  std::vector<double> partition_;
  std::vector<std::uint32_t> histogram_;
  std::vector<std::size_t> ties_;
  std::vector<std::int32_t> dropped_;
  std::vector<Newcomer> newcomers_;
  std::vector<Future> futures_;       // for `recombine`: of each candidate
  std::vector<std::int32_t> table_;   // a hash table of the best candidate of each future
  std::vector<std::int32_t> best_of_;
  std::uint64_t reach_ = 0;           // a bit for each class that may enter the beam, modulo 64
  double largest_total_ = 0.0;
  double best_ = 0.0;                 // the largest score of all candidates
  double floor_ = 0.0;                // no candidate with a lower score can enter the beam
  double bound_ = 0.0;                // the same, slightly lower to allow for rounding
  std::size_t tighten_at_ = 0;
};

}  // namespace word_beam
