// The inputs and outputs of the CTC loss, and their checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace recurrent {

// Arrays are batch-major and contiguous. The blank is the last class.
struct Ctc {
  std::size_t batch = 0, frames = 0, classes = 0, width = 0;
  const float* logits = nullptr;                 // (batch, frames, classes)
  const std::int32_t* lengths = nullptr;         // (batch): valid frames
  const std::int32_t* labels = nullptr;          // (batch, width)
  const std::int32_t* label_lengths = nullptr;   // (batch): valid labels
  float* losses = nullptr;                       // (batch)
  float* gradient = nullptr;                     // (batch, frames, classes): of each one's loss
};

// Throws std::invalid_argument for what has no loss. The texts begin like TensorFlow's.
inline void check(const Ctc& problem) {
  const auto fail = [](const std::string& what, std::size_t utterance) {
    throw std::invalid_argument(what + " Utterance of the batch: " + std::to_string(utterance) +
                                ", counted from 0.");
  };
  for (std::size_t u = 0; u < problem.batch; ++u) {
    const std::int32_t frames = problem.lengths[u], labels = problem.label_lengths[u];
    if (frames < 0 || static_cast<std::size_t>(frames) > problem.frames) {
      fail("There are " + std::to_string(problem.frames) + " frames, but logit_lengths has " +
               std::to_string(frames) + ".",
           u);
    }
    if (labels < 1) fail("Labels length is zero.", u);
    if (static_cast<std::size_t>(labels) > problem.width) {
      fail("There are " + std::to_string(problem.width) + " labels, but label_lengths has " +
               std::to_string(labels) + ".",
           u);
    }
    if (labels > frames) {
      fail("Not enough time for target transition sequence: there are " + std::to_string(labels) +
               " labels and " + std::to_string(frames) + " frames.",
           u);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(labels); ++i) {
      const std::int32_t label = problem.labels[u * problem.width + i];
      if (label < 0 || static_cast<std::size_t>(label) + 1 >= problem.classes) {
        fail("Labels must be in 0.." + std::to_string(static_cast<long>(problem.classes) - 2) +
                 ". Received: " + std::to_string(label) + ".",
             u);
      }
    }
  }
}

}  // namespace recurrent
