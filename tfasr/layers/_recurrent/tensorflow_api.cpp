#include "tensorflow_api.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace recurrent {
namespace {

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string("TensorFlow has no ") + name + ".");
}

}  // namespace

TensorFlow find_tensorflow(const char* library) {
  // RTLD_NOLOAD, because a second copy of the library would have a registry that nobody reads.
  void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  if (!loaded) throw std::runtime_error(std::string(library) + " is not loaded.");
  TensorFlow tf;
#define FIND(name) find(loaded, #name, tf.name)  // a function couldn't get its argument's name
  FIND(TF_NewStatus);
  FIND(TF_DeleteStatus);
  FIND(TF_SetStatus);
  FIND(TF_GetCode);
  FIND(TF_Message);
  FIND(TF_NewOpDefinitionBuilder);
  FIND(TF_OpDefinitionBuilderAddInput);
  FIND(TF_OpDefinitionBuilderAddOutput);
  FIND(TF_OpDefinitionBuilderAddAttr);
  FIND(TF_OpDefinitionBuilderSetShapeInferenceFunction);
  FIND(TF_RegisterOpDefinition);
  FIND(TF_NewShapeHandle);
  FIND(TF_DeleteShapeHandle);
  FIND(TF_NewDimensionHandle);
  FIND(TF_DeleteDimensionHandle);
  FIND(TF_DimensionHandleValueKnown);
  FIND(TF_DimensionHandleValue);
  FIND(TF_ShapeInferenceContextRankKnown);
  FIND(TF_ShapeInferenceContextGetInput);
  FIND(TF_ShapeInferenceContextSetOutput);
  FIND(TF_ShapeInferenceContextSetUnknownShape);
  FIND(TF_ShapeInferenceContextWithRank);
  FIND(TF_ShapeInferenceContextDim);
  FIND(TF_ShapeInferenceContextSubshape);
  FIND(TF_ShapeInferenceContextConcatenateShapes);
  FIND(TF_NewKernelBuilder);
  FIND(TF_KernelBuilder_TypeConstraint);
  FIND(TF_RegisterKernelBuilder);
  FIND(TF_OpKernelConstruction_GetAttrFloat);
  FIND(TF_OpKernelConstruction_GetAttrInt64);
  FIND(TF_OpKernelConstruction_Failure);
  FIND(TF_NumInputs);
  FIND(TF_GetInput);
  FIND(TF_SetOutput);
  FIND(TF_OpKernelContext_Failure);
  FIND(TF_NewTensor);
  FIND(TF_DeleteTensor);
  FIND(TF_NumDims);
  FIND(TF_Dim);
  FIND(TF_TensorData);
#undef FIND
  return tf;
}

}  // namespace recurrent
