// What all operations share: TensorFlow's objects as C++ classes that free them, inputs as views,
// outputs in memory that is reused by later calls, and errors in TensorFlow's form.
#pragma once

#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "operations.hpp"
#include "prepare.hpp"
#include "tensorflow_api.hpp"

namespace recurrent {

// Set once, before any operation is registered.
extern TensorFlow tensorflow;

template <class T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr DataType kValue = DataType::kFloat;
};
template <>
struct TypeOf<Bfloat16> {
  static constexpr DataType kValue = DataType::kBfloat16;
};

class Status {
 public:
  Status() : status_(tensorflow.TF_NewStatus()) {}
  ~Status() { tensorflow.TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  operator TF_Status*() { return status_; }
  bool ok() const { return tensorflow.TF_GetCode(status_) == 0; }
  void expect_ok() const {
    if (!ok()) throw std::runtime_error(tensorflow.TF_Message(status_));
  }

 private:
  TF_Status* status_;
};

// Calls a function. If it throws, calls report(status) to report the failure to TensorFlow.
template <class Function, class Report>
void guarded(const Function& function, const Report& report) {
  Status status;
  try {
    function();
    return;
  } catch (const std::invalid_argument& error) {
    tensorflow.TF_SetStatus(status, Code::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    tensorflow.TF_SetStatus(status, Code::kResourceExhausted, "No memory for a result.");
  } catch (const std::exception& error) {
    tensorflow.TF_SetStatus(status, Code::kInternal, error.what());
  }
  report(status);
}

// One call of an operation. Views of its inputs are valid as long as it lives, and its `make` is
// what prepare.hpp expects of Outputs.
class Call {
 public:
  explicit Call(TF_OpKernelContext* context) : context_(context) {}
  ~Call() {
    for (TF_Tensor* tensor : tensors_) tensorflow.TF_DeleteTensor(tensor);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  int inputs() const { return tensorflow.TF_NumInputs(context_); }

  template <class T>
  View<T> input(int index) {
    Status status;
    TF_Tensor* tensor = nullptr;
    tensorflow.TF_GetInput(context_, index, &tensor, status);
    status.expect_ok();
    tensors_.push_back(tensor);
    View<T> view{static_cast<const T*>(tensorflow.TF_TensorData(tensor)), {}};
    for (int axis = 0; axis < tensorflow.TF_NumDims(tensor); ++axis) {
      view.shape.push_back(tensorflow.TF_Dim(tensor, axis));
    }
    return view;
  }

  template <class T>
  T* make(int index, const Shape& shape) {
    std::size_t size = sizeof(T);
    for (const std::int64_t length : shape) size *= size_of(length);
    void* memory = allocate(size);
    const auto give_back = [](void* data, std::size_t, void*) { release(data); };
    TF_Tensor* tensor =
        tensorflow.TF_NewTensor(TypeOf<T>::kValue, shape.data(), static_cast<int>(shape.size()), memory,
                                size, give_back, nullptr);
    if (!tensor) throw std::bad_alloc();
    tensors_.push_back(tensor);
    Status status;
    tensorflow.TF_SetOutput(context_, index, tensor, status);
    status.expect_ok();
    // Not `memory`: if TensorFlow wants another alignment, the tensor gets memory elsewhere.
    return static_cast<T*>(tensorflow.TF_TensorData(tensor));
  }

 private:
  TF_OpKernelContext* context_;
  std::vector<TF_Tensor*> tensors_;
};

// Reads the attributes of an operation in a graph.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  float number(const char* name) const {
    Status status;
    float value = 0;
    tensorflow.TF_OpKernelConstruction_GetAttrFloat(construction_, name, &value, status);
    status.expect_ok();
    return value;
  }

  std::int64_t integer(const char* name) const {
    Status status;
    std::int64_t value = 0;
    tensorflow.TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status);
    status.expect_ok();
    return value;
  }

 private:
  TF_OpKernelConstruction* construction_;
};

// Sets the shapes of an operation's outputs, as far as they are known when a graph is made.
using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

struct Definition {
  const char* name;
  std::initializer_list<const char*> inputs, outputs, attributes;
  ShapeFunction shapes;
};

void define(const Definition& definition);

// Registers an operation's kernel for one type `T`. The class `Kernel` has a constructor that takes
// Attributes, and a function compute(Call&).
template <class Kernel>
void define_kernel(const char* operation, DataType type) {
  const auto create = [](TF_OpKernelConstruction* construction) -> void* {
    Kernel* kernel = nullptr;
    guarded([&] { kernel = new Kernel(Attributes(construction)); },
            [&](TF_Status* status) {
              tensorflow.TF_OpKernelConstruction_Failure(construction, status);
            });
    return kernel;
  };
  const auto compute = [](void* kernel, TF_OpKernelContext* context) {
    guarded(
        [&] {
          Call call(context);
          static_cast<Kernel*>(kernel)->compute(call);
        },
        [&](TF_Status* status) { tensorflow.TF_OpKernelContext_Failure(context, status); });
  };
  const auto destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  Status status;
  TF_KernelBuilder* builder =
      tensorflow.TF_NewKernelBuilder(operation, "CPU", create, compute, destroy);
  tensorflow.TF_KernelBuilder_TypeConstraint(builder, "T", type, status);
  status.expect_ok();
  tensorflow.TF_RegisterKernelBuilder(operation, builder, status);
  status.expect_ok();
}

// Each defined in the source file of its name.
void define_recurrence_operations();
void define_normalisation_operations();
void define_ctc_operation();

}  // namespace recurrent
