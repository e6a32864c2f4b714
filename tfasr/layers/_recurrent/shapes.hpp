// Infers shapes while a graph is made, when some lengths may be unknown.
#pragma once

#include "tensorflow_operation.hpp"

namespace recurrent {

// The shape of an operation's input or output.
class GraphShape {
 public:
  GraphShape() : handle_(tensorflow.TF_NewShapeHandle()) {}
  ~GraphShape() { tensorflow.TF_DeleteShapeHandle(handle_); }
  GraphShape(const GraphShape&) = delete;
  GraphShape& operator=(const GraphShape&) = delete;

  operator TF_ShapeHandle*() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

// Infers the output shapes of an operation from its inputs' shapes. After a failure its functions
// do nothing, and TensorFlow gets the failure's status.
class Inference {
 public:
  Inference(TF_ShapeInferenceContext* context, TF_Status* status)
      : context_(context), status_(status) {
    tensorflow.TF_ShapeInferenceContextSetUnknownShape(context_, status_);
  }

  bool ok() const { return tensorflow.TF_GetCode(status_) == 0; }

  // Writes an input's shape to `shape`.
  void input(int index, GraphShape& shape) {
    if (ok()) tensorflow.TF_ShapeInferenceContextGetInput(context_, index, shape, status_);
  }

  // The same, and fails if the input is known to have another number of axes than `rank`.
  void input(int index, std::int64_t rank, GraphShape& shape) {
    GraphShape any;
    input(index, any);
    if (ok()) tensorflow.TF_ShapeInferenceContextWithRank(context_, any, rank, shape, status_);
  }

  // Writes the axes begin, ..., end - 1 of `whole` to `shape`.
  void part(const GraphShape& whole, int begin, int end, GraphShape& shape) {
    if (ok()) {
      tensorflow.TF_ShapeInferenceContextSubshape(context_, whole, begin, end, shape, status_);
    }
  }

  void join(const GraphShape& first, const GraphShape& second, GraphShape& shape) {
    if (ok()) {
      tensorflow.TF_ShapeInferenceContextConcatenateShapes(context_, first, second, shape, status_);
    }
  }

  void output(int index, const GraphShape& shape) {
    if (ok()) tensorflow.TF_ShapeInferenceContextSetOutput(context_, index, shape, status_);
  }

  // Returns the length of an axis, or -1 if it is unknown.
  std::int64_t length(const GraphShape& shape, int axis) {
    if (!ok() || !tensorflow.TF_ShapeInferenceContextRankKnown(context_, shape)) return -1;
    TF_DimensionHandle* handle = tensorflow.TF_NewDimensionHandle();
    tensorflow.TF_ShapeInferenceContextDim(context_, shape, axis, handle);
    const bool known = tensorflow.TF_DimensionHandleValueKnown(handle);
    const std::int64_t length = known ? tensorflow.TF_DimensionHandleValue(handle) : -1;
    tensorflow.TF_DeleteDimensionHandle(handle);
    return length;
  }

 private:
  TF_ShapeInferenceContext* context_;
  TF_Status* status_;
};

}  // namespace recurrent
