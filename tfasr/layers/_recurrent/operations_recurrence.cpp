// The recurrence's forward and backward pass as operations in TensorFlow graphs.
#include "shapes.hpp"
#include "tensorflow_operation.hpp"

namespace recurrent {
namespace {

constexpr const char* kForward = "TfasrRecurrence";
constexpr const char* kBackward = "TfasrRecurrenceGradient";

template <class Number>
class RecurrenceKernel {
 public:
  explicit RecurrenceKernel(const Attributes& attributes)
      : ceiling_(attributes.number("ceiling")),
        replicas_(static_cast<int>(attributes.integer("replicas"))) {}

 protected:
  // Reads what both passes need. Inputs `first` to `first + 2` are the recurrent kernel and the
  // states h and c before the first step. Input `mask`, the last, is the mask, if there is one.
  void read(Call& call, int first, int mask, RecurrenceArguments<Number>& arguments) const {
    arguments.recurrent_kernel = call.input<Number>(first);
    arguments.h = call.input<float>(first + 1);
    arguments.c = call.input<float>(first + 2);
    if (mask < call.inputs()) arguments.mask = call.input<std::uint8_t>(mask);
    arguments.ceiling = ceiling_;
  }

  template <class Problem>
  void solve(const Prepared<Problem>& prepared) const {
    run(chosen_set(), prepared, threads_of_a_call(replicas_));
  }

 private:
  const float ceiling_;
  const int replicas_;
};

template <class Number>
class ForwardKernel : RecurrenceKernel<Number> {
 public:
  using RecurrenceKernel<Number>::RecurrenceKernel;

  void compute(Call& call) const {
    ForwardArguments<Number> arguments;
    arguments.projected = call.input<Number>(0);
    arguments.bias = call.input<float>(1);
    this->read(call, 2, 5, arguments);
    this->solve(prepare(arguments, call));
  }
};

template <class Number>
class BackwardKernel : RecurrenceKernel<Number> {
 public:
  using RecurrenceKernel<Number>::RecurrenceKernel;

  void compute(Call& call) const {
    BackwardArguments<Number> arguments;
    arguments.gates = call.input<float>(0);
    arguments.all_c = call.input<float>(1);
    arguments.outputs = call.input<float>(2);
    this->read(call, 3, 9, arguments);
    arguments.d_outputs = call.input<float>(6);
    arguments.d_last_h = call.input<float>(7);
    arguments.d_last_c = call.input<float>(8);
    this->solve(prepare(arguments, call));
  }
};

// Writes (batch, time, units) to `shape`; returns whether the layer is known to be an LSTM.
bool infer_states(Inference& inference, const GraphShape& wide, int kernel_input,
                  GraphShape& shape) {
  GraphShape kernel, units, frames;
  inference.input(kernel_input, 2, kernel);
  inference.part(wide, 0, 2, frames);
  inference.part(kernel, 0, 1, units);
  inference.join(frames, units, shape);
  const std::int64_t count = inference.length(kernel, 0);
  return count > 0 && inference.length(kernel, 1) == 4 * count;
}

void forward_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  GraphShape projected, states;
  inference.input(0, 3, projected);
  const bool lstm = infer_states(inference, projected, 2, states);
  inference.output(0, projected);
  if (lstm) inference.output(1, states);
  inference.output(2, states);
}

void backward_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  Inference inference(context, status);
  GraphShape gates, states, bias, last;
  inference.input(0, 3, gates);
  const bool lstm = infer_states(inference, gates, 3, states);
  inference.part(gates, 2, 3, bias);
  inference.input(7, 2, last);
  inference.output(0, gates);
  inference.output(1, states);
  inference.output(2, bias);
  inference.output(3, last);
  if (lstm) inference.output(4, last);
}

}  // namespace

void define_recurrence_operations() {
  define({kForward,
          {"projected: T", "bias: float", "recurrent_kernel: T", "h: float", "c: float",
           "mask: masks * bool"},
          {"gates: float", "all_c: float", "outputs: float"},
          {"T: {float, bfloat16}", "masks: int >= 0", "ceiling: float", "replicas: int >= 1"},
          forward_shapes});
  define_kernel<ForwardKernel<float>>(kForward, DataType::kFloat);
  define_kernel<ForwardKernel<Bfloat16>>(kForward, DataType::kBfloat16);
  define({kBackward,
          {"gates: float", "all_c: float", "outputs: float", "recurrent_kernel: T", "h: float",
           "c: float", "d_outputs: float", "d_last_h: float", "d_last_c: float",
           "mask: masks * bool"},
          {"d_projected: T", "previous_h: T", "d_bias: float", "d_h: float", "d_c: float"},
          {"T: {float, bfloat16}", "masks: int >= 0", "ceiling: float", "replicas: int >= 1"},
          backward_shapes});
  define_kernel<BackwardKernel<float>>(kBackward, DataType::kFloat);
  define_kernel<BackwardKernel<Bfloat16>>(kBackward, DataType::kBfloat16);
}

}  // namespace recurrent
