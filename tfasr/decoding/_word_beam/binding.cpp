// The Python module of the search. No other file depends on Python.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "decoder.hpp"
#include "hot_words.hpp"
#include "outside_model.hpp"

namespace py = pybind11;

namespace word_beam {
namespace {

using Words = std::vector<std::vector<std::int32_t>>;
using Floats = py::array_t<float, py::array::c_style>;
using Integers = py::array_t<std::int64_t, py::array::c_style>;

std::shared_ptr<BigramModel> make_bigram_model(std::vector<double> unigrams,
                                               const Integers& bigrams, double k, bool forecast,
                                               std::int32_t sample, std::uint64_t seed) {
  if (bigrams.ndim() != 2 || bigrams.shape(1) != 3) {
    throw std::invalid_argument("bigrams must have the shape (n, 3).");
  }
  const auto rows = bigrams.unchecked<2>();
  std::vector<Bigram> counted;
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    counted.push_back({static_cast<std::int32_t>(rows(i, 0)), static_cast<std::int32_t>(rows(i, 1)),
                       static_cast<double>(rows(i, 2))});
  }
  return std::make_shared<BigramModel>(std::move(unigrams), std::move(counted), k, forecast, sample,
                                       seed);
}

std::unique_ptr<Decoder> make_decoder(Words words, bool is_open, std::vector<std::uint8_t> kinds,
                                      std::int32_t separator, std::int32_t space,
                                      std::int32_t beam_width, bool recombine,
                                      std::shared_ptr<LanguageModel> model) {
  Problem problem;
  problem.kinds = std::move(kinds);
  problem.separator = separator;
  problem.space = space;
  problem.beam_width = beam_width;
  problem.recombine = recombine;
  return std::make_unique<Decoder>(Dictionary(std::move(words), is_open), std::move(model),
                                   std::move(problem));
}

py::list candidates_of(const std::vector<Result>& found) {
  py::list candidates;
  for (const Result& result : found) {
    candidates.append(py::make_tuple(result.labels, result.score));
  }
  return candidates;
}

py::list decode(const Decoder& decoder, const Floats& log_probs, const Integers& lengths,
                std::size_t n_best, int num_threads) {
  if (log_probs.ndim() != 3 || lengths.ndim() != 1 || lengths.shape(0) != log_probs.shape(0)) {
    throw std::invalid_argument("log_probs must be (batch, time, classes) and lengths (batch,).");
  }
  const Batch batch{log_probs.data(), lengths.data(), log_probs.shape(0), log_probs.shape(1),
                    log_probs.shape(2)};
  std::vector<std::vector<Result>> results;
  {
    const py::gil_scoped_release release;
    results = decoder.decode(batch, n_best, num_threads);
  }
  py::list utterances;
  for (const std::vector<Result>& found : results) utterances.append(candidates_of(found));
  return utterances;
}

void hear(Utterance& utterance, const Floats& log_probs) {
  if (log_probs.ndim() != 2) throw std::invalid_argument("log_probs must be (time, classes).");
  const py::gil_scoped_release release;
  utterance.hear(log_probs.data(), log_probs.shape(0), log_probs.shape(1));
}

py::list results(Utterance& utterance, std::size_t n_best) {
  std::vector<Result> results;
  {
    const py::gil_scoped_release release;
    results = utterance.results(n_best);
  }
  return candidates_of(results);
}

}  // namespace

PYBIND11_MODULE(_word_beam_core, module) {
  module.doc() = "The compiled core of tfasr.decoding.word_beam_search.";
  py::class_<LanguageModel, std::shared_ptr<LanguageModel>>(module, "LanguageModel");
  py::class_<BigramModel, LanguageModel, std::shared_ptr<BigramModel>>(module, "BigramModel")
      .def(py::init(&make_bigram_model), py::arg("unigrams"), py::arg("bigrams"), py::arg("k"),
           py::arg("forecast"), py::arg("sample"), py::arg("seed"));
  py::class_<OutsideModel, LanguageModel, std::shared_ptr<OutsideModel>>(module, "OutsideModel")
      .def(py::init<OutsideModel::Score, OutsideModel::End>(), py::arg("score"), py::arg("end"));
  py::class_<HotWords, LanguageModel, std::shared_ptr<HotWords>>(module, "HotWords")
      .def(py::init<std::vector<std::pair<std::int32_t, double>>,
                    std::shared_ptr<const LanguageModel>>(),
           py::arg("bonuses"), py::arg("model"));
  py::class_<Decoder>(module, "Decoder")
      .def(py::init(&make_decoder), py::arg("words"), py::arg("is_open"), py::arg("kinds"),
           py::arg("separator"), py::arg("space"), py::arg("beam_width"), py::arg("recombine"), py::arg("model"))
      .def("decode", &decode, py::arg("log_probs").noconvert(), py::arg("lengths").noconvert(),
           py::arg("n_best"), py::arg("num_threads"));
  py::class_<Utterance>(module, "Utterance")
      .def(py::init<const Decoder&>(), py::arg("decoder"), py::keep_alive<1, 2>())
      .def("hear", &hear, py::arg("log_probs").noconvert())
      .def("results", &results, py::arg("n_best"));
}

}  // namespace word_beam
