// The part of TensorFlow's C interface that registers operations and runs them (its headers
// tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h). Its functions are looked up in the library
// that this process has loaded, so neither building nor loading this code needs TensorFlow.
#pragma once

#include <cstddef>
#include <cstdint>

// TensorFlow's own types; only pointers to them are used.
struct TF_DimensionHandle;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace recurrent {

// Values as in tf_datatype.h and tf_status.h.
enum class DataType : int { kFloat = 1, kBfloat16 = 14 };
enum class Code : int { kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13 };

// Each member points to the function of its name.
struct TensorFlow {
  TF_Status* (*TF_NewStatus)();
  void (*TF_DeleteStatus)(TF_Status*);
  void (*TF_SetStatus)(TF_Status*, Code, const char* message);
  int (*TF_GetCode)(const TF_Status*);
  const char* (*TF_Message)(const TF_Status*);

  TF_OpDefinitionBuilder* (*TF_NewOpDefinitionBuilder)(const char* name);
  void (*TF_OpDefinitionBuilderAddInput)(TF_OpDefinitionBuilder*, const char* spec);
  void (*TF_OpDefinitionBuilderAddOutput)(TF_OpDefinitionBuilder*, const char* spec);
  void (*TF_OpDefinitionBuilderAddAttr)(TF_OpDefinitionBuilder*, const char* spec);
  void (*TF_OpDefinitionBuilderSetShapeInferenceFunction)(
      TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*));
  void (*TF_RegisterOpDefinition)(TF_OpDefinitionBuilder*, TF_Status*);

  TF_ShapeHandle* (*TF_NewShapeHandle)();
  void (*TF_DeleteShapeHandle)(TF_ShapeHandle*);
  TF_DimensionHandle* (*TF_NewDimensionHandle)();
  void (*TF_DeleteDimensionHandle)(TF_DimensionHandle*);
  int (*TF_DimensionHandleValueKnown)(TF_DimensionHandle*);
  std::int64_t (*TF_DimensionHandleValue)(TF_DimensionHandle*);
  int (*TF_ShapeInferenceContextRankKnown)(TF_ShapeInferenceContext*, TF_ShapeHandle*);
  void (*TF_ShapeInferenceContextGetInput)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*,
                                           TF_Status*);
  void (*TF_ShapeInferenceContextSetOutput)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*,
                                            TF_Status*);
  void (*TF_ShapeInferenceContextSetUnknownShape)(TF_ShapeInferenceContext*, TF_Status*);
  void (*TF_ShapeInferenceContextWithRank)(TF_ShapeInferenceContext*, TF_ShapeHandle*,
                                           std::int64_t rank, TF_ShapeHandle* result, TF_Status*);
  void (*TF_ShapeInferenceContextDim)(TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t,
                                      TF_DimensionHandle* result);
  void (*TF_ShapeInferenceContextSubshape)(TF_ShapeInferenceContext*, TF_ShapeHandle*,
                                           std::int64_t begin, std::int64_t end,
                                           TF_ShapeHandle* result, TF_Status*);
  void (*TF_ShapeInferenceContextConcatenateShapes)(TF_ShapeInferenceContext*, TF_ShapeHandle*,
                                                    TF_ShapeHandle*, TF_ShapeHandle* result,
                                                    TF_Status*);

  TF_KernelBuilder* (*TF_NewKernelBuilder)(const char* operation, const char* device,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void* kernel, TF_OpKernelContext*),
                                           void (*destroy)(void* kernel));
  void (*TF_KernelBuilder_TypeConstraint)(TF_KernelBuilder*, const char* attribute, DataType,
                                          TF_Status*);
  void (*TF_RegisterKernelBuilder)(const char* name, TF_KernelBuilder*, TF_Status*);
  void (*TF_OpKernelConstruction_GetAttrFloat)(TF_OpKernelConstruction*, const char*, float*,
                                               TF_Status*);
  void (*TF_OpKernelConstruction_GetAttrInt64)(TF_OpKernelConstruction*, const char*,
                                               std::int64_t*, TF_Status*);
  void (*TF_OpKernelConstruction_Failure)(TF_OpKernelConstruction*, TF_Status*);

  int (*TF_NumInputs)(TF_OpKernelContext*);
  void (*TF_GetInput)(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*);
  void (*TF_SetOutput)(TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*);
  void (*TF_OpKernelContext_Failure)(TF_OpKernelContext*, TF_Status*);
  TF_Tensor* (*TF_NewTensor)(DataType, const std::int64_t* shape, int axes, void* data,
                             std::size_t bytes,
                             void (*release)(void* data, std::size_t bytes, void* context),
                             void* context);
  void (*TF_DeleteTensor)(TF_Tensor*);
  int (*TF_NumDims)(const TF_Tensor*);
  std::int64_t (*TF_Dim)(const TF_Tensor*, int);
  void* (*TF_TensorData)(const TF_Tensor*);
};

// Returns the functions of a library that is already loaded. Throws std::runtime_error if it isn't,
// or lacks one of them.
TensorFlow find_tensorflow(const char* library);

}  // namespace recurrent
