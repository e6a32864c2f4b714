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

// What is searched for; shared by all threads and never changed.
struct Problem {
  const Dictionary* dictionary = nullptr;
  const LanguageModel* language_model = nullptr;  // nullptr: the dictionary only
  std::vector<std::uint8_t> kinds;                // a Kind per class but the blank, which is last
  std::int32_t separator = -1;  // the class that a text leaves out; -1: none
  std::int32_t space = -1;      // the class of which a text holds one between words; -1: none
  std::int32_t beam_width = 1;
  bool recombine = false;

  bool is_inside(std::int32_t label) const {
    return kinds[static_cast<std::size_t>(label)] == kInside;
  }
  std::int32_t blank() const { return static_cast<std::int32_t>(kinds.size()); }
};

struct Result {
  std::vector<std::int32_t> labels;  // as a text holds them
  double score = 0.0;                // natural logarithm
};

class Search {
 public:
  explicit Search(const Problem& problem);

  // log_probs: frames x classes, none NaN. Returns at most n_best results of different labels, best
  // first, and at least one.
  std::vector<Result> decode(const float* log_probs, std::int64_t frames, std::size_t n_best);

  // The same in steps, for frames that come bit by bit: begin an utterance, hear the next frames,
  // see what they say so far. Asking changes nothing.
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
  // What decides how a candidate can go on, and what of it decides how well.
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
    std::size_t above;  // candidates of a higher score
    std::size_t level;  // candidates of this score
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
  bool weighs_;  // whether a language model has a say
  SequenceTree tree_;
  Beams beams_;
  double log_scale_ = 0.0;

  // One frame's work; kept between frames so that nothing is allocated per frame.
  std::vector<double> y_;
  std::vector<Class> word_classes_;  // inside words, that may lead into the beam; likeliest first
  std::vector<Class> gap_classes_;   // the others
  std::vector<double> scores_;  // of the beams that stay, then of the extensions
  std::vector<Extension> extensions_;
  std::vector<double> partition_;
  std::vector<std::uint32_t> histogram_;
  std::vector<std::size_t> ties_;
  std::vector<std::int32_t> dropped_;
  std::vector<Newcomer> newcomers_;
  std::vector<Future> futures_;       // of `recombine`, by candidate
  std::vector<std::int32_t> table_;   // its hash table of the best candidate of each future
  std::vector<std::int32_t> best_of_;
  std::uint64_t reach_ = 0;           // the classes that may lead into the beam, if there are at most 64
  double largest_total_ = 0.0;
  double best_ = 0.0;                 // score among all candidates
  double floor_ = 0.0;                // no candidate below it can enter the beam
  double bound_ = 0.0;                // the same, with room for rounding
  std::size_t tighten_at_ = 0;
};

}  // namespace word_beam
