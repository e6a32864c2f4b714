// Like prepare.hpp, for the CTC loss.
#pragma once

#include "prepare.hpp"

namespace recurrent {

struct CtcArguments {
  View<float> logits;
  View<std::int32_t> lengths, labels, label_lengths;
};

// Outputs: losses and gradient.
template <class Outputs>
Ctc prepare(const CtcArguments& arguments, Outputs& outputs) {
  const Shape &shape = arguments.logits.shape, &labels = arguments.labels.shape;
  if (shape.size() != 3 || labels.size() != 2) {
    throw std::invalid_argument(
        "logits must be (batch, frames, classes), labels (batch, labels).");
  }
  const std::int64_t batch = shape[0];
  expect(arguments.lengths, {batch}, "logit_lengths");
  expect(arguments.labels, {batch, labels[1]}, "labels");
  expect(arguments.label_lengths, {batch}, "label_lengths");
  Ctc problem;
  problem.batch = size_of(batch);
  problem.frames = size_of(shape[1]);
  problem.classes = size_of(shape[2]);
  problem.width = size_of(labels[1]);
  problem.logits = arguments.logits.data;
  problem.lengths = arguments.lengths.data;
  problem.labels = arguments.labels.data;
  problem.label_lengths = arguments.label_lengths.data;
  check(problem);
  problem.losses = outputs.template make<float>(0, {batch});
  problem.gradient = outputs.template make<float>(1, shape);
  return problem;
}

}  // namespace recurrent
