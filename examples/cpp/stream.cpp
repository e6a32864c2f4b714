// Streaming speech to text with ONNX Runtime alone, without Python or separate signal processing.
//
//     arecord -q -f S16_LE -r 16000 -t raw | ./stream EXPORTED        (a folder of tfasr export)
//     ffmpeg -i talk.mp3 -f s16le -ac 1 -ar 16000 - | ./stream EXPORTED 1600   (samples a chunk)
//
// Takes 16-bit samples of one channel at the model's rate from standard input. The text appears
// character by character, by greedy decoding.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "onnxruntime_c_api.h"

static const OrtApi* ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
static OrtAllocator* allocator;
static OrtMemoryInfo* cpu;

[[noreturn]] static void fail(const std::string& why) {
  std::fprintf(stderr, "stream: %s\n", why.c_str());
  std::exit(1);
}

static void check(OrtStatus* status) {
  if (status) fail(ort->GetErrorMessage(status));
}

// An array with its shape. What a graph returns is copied out, so that none is held behind a call.
template <typename T>
struct Tensor {
  std::vector<T> numbers;
  std::vector<int64_t> shape;
};
using Floats = Tensor<float>;

template <typename T>
static OrtValue* value(Tensor<T>& tensor, ONNXTensorElementDataType type) {
  OrtValue* made = nullptr;
  check(ort->CreateTensorWithDataAsOrtValue(cpu, tensor.numbers.data(),
                                            tensor.numbers.size() * sizeof(T), tensor.shape.data(),
                                            tensor.shape.size(), type, &made));
  return made;
}

struct Graph {
  OrtSession* session = nullptr;
  Graph(OrtEnv* env, const std::string& path) {
    OrtSessionOptions* options;
    check(ort->CreateSessionOptions(&options));
    check(ort->SetIntraOpNumThreads(options, 1));
    check(ort->CreateSession(env, path.c_str(), options, &session));
  }
  std::string metadata(const char* key) const {
    OrtModelMetadata* all;
    char* found = nullptr;
    check(ort->SessionGetModelMetadata(session, &all));
    check(ort->ModelMetadataLookupCustomMetadataMap(all, allocator, key, &found));
    if (!found) fail(std::string("the graph has no ") + key + ": export the run again");
    return found;
  }
  // The recurrence's states before any speech: all inputs that are neither features nor lengths.
  std::map<std::string, Floats> states() const {
    std::map<std::string, Floats> zeros;
    size_t count;
    check(ort->SessionGetInputCount(session, &count));
    for (size_t i = 0; i < count; ++i) {
      char* name;
      check(ort->SessionGetInputName(session, i, allocator, &name));
      if (!std::strcmp(name, "features") || !std::strcmp(name, "lengths")) continue;
      OrtTypeInfo* type;
      const OrtTensorTypeAndShapeInfo* info;
      int64_t shape[3];  // directions, batch, units
      check(ort->SessionGetInputTypeInfo(session, i, &type));
      check(ort->CastTypeInfoToTensorInfo(type, &info));
      check(ort->GetDimensions(info, shape, 3));
      zeros[name] = {std::vector<float>(shape[2]), {1, 1, shape[2]}};
    }
    return zeros;
  }
  std::vector<Floats> run(const std::vector<const char*>& inputs, std::vector<OrtValue*> values,
                          const std::vector<const char*>& outputs) const {
    std::vector<OrtValue*> made(outputs.size(), nullptr);
    check(ort->Run(session, nullptr, inputs.data(), values.data(), values.size(), outputs.data(),
                   outputs.size(), made.data()));
    std::vector<Floats> copies(made.size());
    for (size_t i = 0; i < made.size(); ++i) {
      OrtTensorTypeAndShapeInfo* info;
      size_t dimensions, count;
      float* numbers;
      check(ort->GetTensorTypeAndShape(made[i], &info));
      check(ort->GetDimensionsCount(info, &dimensions));
      check(ort->GetTensorShapeElementCount(info, &count));
      copies[i].shape.resize(dimensions);
      check(ort->GetDimensions(info, copies[i].shape.data(), dimensions));
      check(ort->GetTensorMutableData(made[i], reinterpret_cast<void**>(&numbers)));
      copies[i].numbers.assign(numbers, numbers + count);
      ort->ReleaseTensorTypeAndShapeInfo(info);
      ort->ReleaseValue(made[i]);
    }
    for (OrtValue* input : values) ort->ReleaseValue(input);
    return copies;
  }
};

static std::vector<std::string> characters_of(const std::string& utf8) {
  std::vector<std::string> characters;
  for (char byte : utf8) {
    if ((byte & 0xC0) != 0x80) characters.emplace_back();  // a character starts
    characters.back() += byte;
  }
  return characters;
}

class Recogniser {
 public:
  Recogniser(OrtEnv* env, const std::string& folder)
      : features_(env, folder + "/features.onnx"), model_(env, folder + "/model.onnx") {
    const std::string normalisation = features_.metadata("normalisation");
    if (normalisation != "corpus" && normalisation != "none")
      fail("a model must not need an utterance's end to stream; train with an4_streaming.gin");
    window_ = std::stoul(features_.metadata("window_samples"));
    step_ = std::stoul(features_.metadata("step_samples"));
    kernel_ = std::stoul(model_.metadata("kernel_frames"));
    stride_ = std::stoul(model_.metadata("stride_frames"));
    characters_ = characters_of(model_.metadata("characters"));
    separator_ = model_.metadata("separator");
    if (std::stoul(model_.metadata("blank_id")) != characters_.size())
      fail("this program writes characters; the model's classes are sub-word units");
    states_ = model_.states();
    last_ = blank_ = characters_.size();  // the class behind all characters
  }

  // Takes samples in -1..1 and returns the text since the last call.
  std::string hear(const std::vector<float>& samples) {
    samples_.insert(samples_.end(), samples.begin(), samples.end());
    if (samples_.size() >= window_) take_features();
    const size_t frames = width_ ? frames_.size() / width_ : 0;
    return frames >= kernel_ ? take_text(1 + (frames - kernel_) / stride_) : "";
  }

 private:
  void take_features() {
    Floats samples{samples_, {1, static_cast<int64_t>(samples_.size())}};
    Floats features = features_.run(
        {"samples"}, {value(samples, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)}, {"features"})[0];
    frames_.insert(frames_.end(), features.numbers.begin(), features.numbers.end());
    samples_.erase(samples_.begin(), samples_.begin() + features.shape[1] * step_);
    width_ = features.shape[2];
  }

  std::string take_text(size_t count) {
    const int64_t seen = kernel_ + (count - 1) * stride_;
    Floats features{{frames_.begin(), frames_.begin() + seen * width_},
                    {1, seen, static_cast<int64_t>(width_)}};
    Tensor<int32_t> lengths{{static_cast<int32_t>(seen)}, {1}};
    std::vector<const char*> inputs{"features", "lengths"}, outputs{"log_probs"};
    std::vector<OrtValue*> values{value(features, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
                                  value(lengths, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)};
    std::vector<std::string> next;
    for (auto& [name, state] : states_) {
      inputs.push_back(name.c_str());
      values.push_back(value(state, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
      next.push_back("next_" + name);
    }
    for (const std::string& name : next) outputs.push_back(name.c_str());
    std::vector<Floats> found = model_.run(inputs, values, outputs);
    size_t number = 1;
    for (auto& [name, state] : states_) state = found[number++];
    frames_.erase(frames_.begin(), frames_.begin() + count * stride_ * width_);
    return greedy(found[0].numbers, count);
  }

  std::string greedy(const std::vector<float>& log_probs, size_t count) {
    std::string text;
    for (size_t frame = 0; frame < count; ++frame) {
      const float* scores = &log_probs[frame * (blank_ + 1)];
      size_t best = 0;
      for (size_t i = 1; i <= blank_; ++i)
        if (scores[i] > scores[best]) best = i;
      if (best != last_ && best != blank_ && characters_[best] != separator_)
        text += characters_[best];
      last_ = best;
    }
    return text;
  }

  Graph features_, model_;
  size_t window_, step_, kernel_, stride_, blank_, last_, width_ = 0;
  std::vector<std::string> characters_;
  std::string separator_;
  std::map<std::string, Floats> states_;
  std::vector<float> samples_, frames_;  // that have not gone through a graph for the last time
};

int main(int count, char** words) {
  if (count < 2) fail("usage: stream EXPORTED [CHUNK_SAMPLES] < speech.raw");
  OrtEnv* env;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "stream", &env));
  check(ort->GetAllocatorWithDefaultOptions(&allocator));
  check(ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &cpu));
  Recogniser recogniser(env, words[1]);
  std::vector<int16_t> chunk(count > 2 ? std::stoul(words[2]) : 1600);
  while (size_t read = std::fread(chunk.data(), sizeof(int16_t), chunk.size(), stdin)) {
    std::vector<float> samples(read);
    for (size_t i = 0; i < read; ++i) samples[i] = chunk[i] / 32768.0f;
    std::fputs(recogniser.hear(samples).c_str(), stdout);
    std::fflush(stdout);
  }
  std::puts("");
}
