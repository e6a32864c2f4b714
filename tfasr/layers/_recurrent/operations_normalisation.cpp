// Forward and backward pass of batch normalisation with dropout as operations in TensorFlow graphs.
#include "tensorflow_operation.hpp"
#include "prepare_normalisation.hpp"
#include "shapes.hpp"

namespace recurrent {
namespace {

constexpr const char* kForward = "TfasrNormalise";
constexpr const char* kBackward = "TfasrNormaliseGradient";

template <class Number>
class NormalisationKernel {
 public:
  explicit NormalisationKernel(const Attributes& attributes)
      : epsilon_(attributes.number("epsilon")),
        scale_(attributes.number("scale")),
        dropped_levels_(attributes.integer("dropped_levels")),
        replicas_(static_cast<int>(attributes.integer("replicas"))) {}

 protected:
  // Reads what both passes need: inputs and gamma are inputs 0 and 1, mask and seed are inputs
  // `mask` and `mask + 1`.
  void read(Call& call, int mask, NormalisationArguments<Number>& arguments) const {
    arguments.inputs = call.input<Number>(0);
    arguments.gamma = call.input<float>(1);
    arguments.mask = call.input<std::uint8_t>(mask);
    arguments.seed = call.input<std::int32_t>(mask + 1);
    arguments.epsilon = epsilon_;
    arguments.scale = scale_;
    arguments.dropped_levels = dropped_levels_;
  }

  template <class Problem>
  void solve(const Problem& problem) const {
    run(chosen_set(), problem, threads_of_a_call(replicas_));
  }

 private:
  const float epsilon_, scale_;
  const std::int64_t dropped_levels_;
  const int replicas_;
};

template <class Number>
class ForwardKernel : NormalisationKernel<Number> {
 public:
  using NormalisationKernel<Number>::NormalisationKernel;

  void compute(Call& call) const {
    NormaliseForwardArguments<Number> arguments;
    this->read(call, 3, arguments);
    arguments.beta = call.input<float>(2);
    this->solve(prepare(arguments, call));
  }
};

template <class Number>
class BackwardKernel : NormalisationKernel<Number> {
 public:
  using NormalisationKernel<Number>::NormalisationKernel;

  void compute(Call& call) const {
    NormaliseBackwardArguments<Number> arguments;
    this->read(call, 5, arguments);
    arguments.mean = call.input<float>(2);
    arguments.variance = call.input<float>(3);
    arguments.d_outputs = call.input<Number>(4);
    this->solve(prepare(arguments, call));
  }
};

// The first output has the shape of `inputs`, the others that of gamma.
void infer_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  GraphShape inputs, gamma;
  inference.input(0, inputs);
  inference.input(1, 1, gamma);
  inference.output(0, inputs);
  inference.output(1, gamma);
  inference.output(2, gamma);
}

}  // namespace

void define_normalisation_operations() {
  define({kForward,
          {"inputs: T", "gamma: float", "beta: float", "mask: bool", "seed: int32"},
          {"outputs: T", "mean: float", "variance: float"},
          {"T: {float, bfloat16}", "epsilon: float", "dropped_levels: int", "scale: float",
           "replicas: int >= 1"},
          infer_shapes});
  define_kernel<ForwardKernel<float>>(kForward, DataType::kFloat);
  define_kernel<ForwardKernel<Bfloat16>>(kForward, DataType::kBfloat16);
  define({kBackward,
          {"inputs: T", "gamma: float", "mean: float", "variance: float", "d_outputs: T",
           "mask: bool", "seed: int32"},
          {"d_inputs: T", "d_gamma: float", "d_beta: float"},
          {"T: {float, bfloat16}", "epsilon: float", "dropped_levels: int", "scale: float",
           "replicas: int >= 1"},
          infer_shapes});
  define_kernel<BackwardKernel<float>>(kBackward, DataType::kFloat);
  define_kernel<BackwardKernel<Bfloat16>>(kBackward, DataType::kBfloat16);
}

}  // namespace recurrent
