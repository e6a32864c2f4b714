// The CTC loss with its gradient as an operation in TensorFlow graphs.
#include "prepare_ctc.hpp"
#include "shapes.hpp"
#include "tensorflow_operation.hpp"

namespace recurrent {
namespace {

class CtcKernel {
 public:
  explicit CtcKernel(const Attributes& attributes)
      : replicas_(static_cast<int>(attributes.integer("replicas"))) {}

  void compute(Call& call) const {
    const CtcArguments arguments{call.input<float>(0), call.input<std::int32_t>(1),
                                 call.input<std::int32_t>(2), call.input<std::int32_t>(3)};
    chosen_set().ctc(prepare(arguments, call), threads_of_a_call(replicas_));
  }

 private:
  const int replicas_;
};

void infer_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  GraphShape logits, lengths;
  inference.input(0, 3, logits);
  inference.input(1, 1, lengths);
  inference.output(0, lengths);
  inference.output(1, logits);
}

}  // namespace

void define_ctc_operation() {
  constexpr const char* kName = "TfasrCtc";
  define({kName,
          {"logits: T", "logit_lengths: int32", "labels: int32", "label_lengths: int32"},
          {"losses: T", "gradient: T"},
          {"T: {float}", "replicas: int >= 1"},
          infer_shapes});
  define_kernel<CtcKernel>(kName, DataType::kFloat);
}

}  // namespace recurrent
