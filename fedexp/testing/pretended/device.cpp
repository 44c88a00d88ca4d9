// The device "pretended": an accelerator whose tensors lie in the CPU's memory.
//
// It is PyTorch's device for others' hardware (PrivateUse1). Every operator runs the CPU's kernel on
// the same memory, so its results are the CPU's to the bit. Before that it refuses whatever a GPU
// would refuse: tensors of several devices in one call, and a generator of the CPU. It tells a Python
// function of every wait: a call for which the program must wait until a GPU has finished its work.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;

namespace {

constexpr auto PRETENDED = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(PRETENDED, 0);

bool is_pretended(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == PRETENDED;
}

// ---- Waits ----------------------------------------------------------------------------------------

// The listener is never destroyed, because Python has ended when the objects of this file are.
PyObject* listener = nullptr;

void listen(const pybind11::object& function) {
  Py_XDECREF(listener);
  listener = function.is_none() ? nullptr : function.inc_ref().ptr();
}

void tell(const std::string& what) {
  if (listener == nullptr) return;
  pybind11::gil_scoped_acquire python;
  if (listener != nullptr) pybind11::reinterpret_borrow<pybind11::function>(listener)(what);
}

// Operators that read values on the host, in the CUDA version of PyTorch.
const std::set<std::string> READS_VALUES{
    "aten::_linalg_eigh",      "aten::_linalg_svd",    "aten::_unique2",
    "aten::bincount",          "aten::equal",          "aten::histc",
    "aten::linalg_cholesky",   "aten::linalg_inv_ex",  "aten::linalg_lstsq",
    "aten::masked_select",     "aten::multinomial",    "aten::nonzero",
    "aten::repeat_interleave", "aten::unique_dim",     "aten::unique_consecutive",
};

// ---- Memory ---------------------------------------------------------------------------------------

void release(void* memory) { c10::GetCPUAllocator()->raw_deallocate(memory); }

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = c10::GetCPUAllocator()->raw_allocate(bytes > 0 ? bytes : 1);
    return {memory, memory, &release, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

DeviceMemory device_memory;
REGISTER_ALLOCATOR(PRETENDED, &device_memory);

std::mutex pinned_lock;
std::set<const void*>& pinned() {
  static auto* places = new std::set<const void*>;
  return *places;
}

void release_pinned(void* memory) {
  {
    std::lock_guard<std::mutex> lock(pinned_lock);
    pinned().erase(memory);
  }
  release(memory);
}

// Page-locked memory of the CPU, from which a copy to the device needs no wait.
struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = c10::GetCPUAllocator()->raw_allocate(bytes > 0 ? bytes : 1);
    std::lock_guard<std::mutex> lock(pinned_lock);
    pinned().insert(memory);
    return {memory, memory, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

PinnedMemory pinned_memory;

bool is_pinned(const void* memory) {
  std::lock_guard<std::mutex> lock(pinned_lock);
  return pinned().count(memory) > 0;
}

c10::Storage copied_storage(const c10::Storage& storage) {
  auto memory = device_memory.allocate(storage.nbytes());
  if (storage.nbytes() > 0) std::memcpy(memory.get(), storage.data(), storage.nbytes());
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory),
                      &device_memory, /*resizable=*/true);
}

// ---- The device, its generator and its hooks ------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return PRETENDED; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// The CPU's generator with the name of the device.
struct Generator : at::CPUGeneratorImpl {
  Generator() : CPUGeneratorImpl(c10::detail::getNonDeterministicRandom()) {
    device_ = DEVICE;
    key_set_ = c10::DispatchKeySet(DispatchKey::PrivateUse1);
  }
};

at::Generator& device_generator() {
  static auto* generator = new at::Generator(at::make_generator<Generator>());
  return *generator;
}

at::Generator new_generator(c10::DeviceIndex) { return at::make_generator<Generator>(); }

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 7  // later ones ask the hooks
REGISTER_GENERATOR_PRIVATEUSE1(new_generator)
#endif

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const { return true; }  // overrides, except in PyTorch 2.6
  bool isAvailable() const { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return device_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex number) const override {
    return new_generator(number);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  c10::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto memory = device_memory.allocate(bytes);
    std::memcpy(memory.get(), storage.data(), std::min(bytes, storage.nbytes()));
    auto& changed = const_cast<c10::Storage&>(storage);
    changed.set_data_ptr_noswap(std::move(memory));
    changed.set_nbytes(bytes);
  }
};

// ---- Tensors: the same memory on the device and on the CPU ----------------------------------------

Tensor tensor_over(c10::Storage storage, const Tensor& like, DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

void release_storage(void* storage) { delete static_cast<c10::Storage*>(storage); }

// A tensor of the CPU over the memory of this tensor.
Tensor on_cpu(const Tensor& tensor) {
  c10::InferenceMode mode(tensor.is_inference());
  auto* kept = new c10::Storage(tensor.storage());
  c10::DataPtr memory(kept->mutable_data(), kept, &release_storage, c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), kept->nbytes(), std::move(memory),
                       c10::GetCPUAllocator(), /*resizable=*/true);
  auto alias = tensor_over(std::move(storage), tensor, DispatchKey::CPU);
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

std::optional<Tensor> on_cpu(const std::optional<Tensor>& tensor) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  return on_cpu(*tensor);
}

// A tensor of the device with a copy of this result of a CPU kernel.
Tensor on_device(const Tensor& result) {
  if (!result.defined() || is_pretended(result)) return result;
  return tensor_over(copied_storage(result.storage()), result, DispatchKey::PrivateUse1);
}

// Takes over the memory and the shape that a CPU kernel has given to the alias.
void follow(const Tensor& tensor, const Tensor& alias) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (alias.storage().data() != tensor.storage().data())
    impl->set_storage_keep_dtype(copied_storage(alias.storage()));
  if (alias.sizes() != tensor.sizes() || alias.strides() != tensor.strides() ||
      alias.storage_offset() != tensor.storage_offset())
    impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
}

// ---- Every operator -------------------------------------------------------------------------------

// One call of an operator: its arguments as the CPU's kernel takes them.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op), name_(op.schema().name()) {}

  void run(torch::jit::Stack* stack) {
    const auto& arguments = op_.schema().arguments();
    const auto given = torch::jit::pop(*stack, arguments.size());
    for (size_t i = 0; i < given.size(); i++) take(given[i], arguments[i]);
    check();
    call();
    for (auto& [tensor, alias] : aliases_) follow(tensor, alias);
    for (auto& result : stack_) stack->push_back(returned(result));
  }

 private:
  void take(const IValue& value, const c10::Argument& argument) {
    const auto* alias = argument.alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    if (value.isTensor()) {
      stack_.emplace_back(taken(value.toTensor(), /*scalars_too=*/is_written));
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(taken(each, true));
      stack_.emplace_back(c10::List<Tensor>(list));
    } else if (value.isOptionalTensorList()) {
      take_index(value);
    } else if (value.isDevice() && value.toDevice().type() == PRETENDED) {
      is_ours_ = true;
      stack_.emplace_back(c10::Device(c10::kCPU));
    } else {
      if (value.isGenerator()) generator_ = value.toGenerator();
      stack_.push_back(value);
    }
  }

  // A GPU takes numbers (tensors without dimensions) of the CPU in most operators.
  Tensor taken(const Tensor& tensor, bool scalars_too) {
    if (!tensor.defined()) return tensor;
    if (is_pretended(tensor)) {
      is_ours_ = true;
      aliases_.emplace_back(tensor, on_cpu(tensor));
      return aliases_.back().second;
    }
    if (tensor.dim() > 0 || scalars_too) has_others_ = true;
    return tensor;
  }

  // An index may lie on the CPU.
  void take_index(const IValue& value) {
    c10::List<std::optional<Tensor>> list;
    for (std::optional<Tensor> each : value.toOptionalTensorVector()) {
      if (!each || !each->defined()) {
        list.push_back(std::nullopt);
        continue;
      }
      has_mask_ = has_mask_ || each->scalar_type() == at::kBool;
      list.push_back(is_pretended(*each) ? taken(*each, false) : *each);
    }
    stack_.emplace_back(list);
  }

  void check() {
    if (!is_ours_) return;
    TORCH_CHECK(!has_others_, "Expected all tensors to be on the same device, but found at least "
                "two devices, ", DEVICE, " and cpu! (", name_, ")");
    TORCH_CHECK(!generator_.defined() || generator_.device().type() == PRETENDED,
                "Expected a '", DEVICE.str(), "' generator but found a 'cpu' one (", name_, ")");
    if (reads_values()) tell(name_);
  }

  // To write several values where a mask is true, a GPU first finds these places.
  bool reads_values() const {
    if (READS_VALUES.count(name_) > 0) return true;
    return has_mask_ && name_.find("index_put") != std::string::npos &&
           stack_[2].toTensor().numel() != 1;
  }

  void call() {
    if (generator_.defined() && is_ours_) return call_with(generator_);
    if (is_ours_ && op_.hasTag(at::Tag::nondeterministic_seeded)) return call_with_default();
    op_.callBoxed(&stack_);
  }

  // The kernels of the CPU take its generators only: one with the same state draws in its place.
  void call_with(at::Generator& generator) {
    auto drawing = at::make_generator<at::CPUGeneratorImpl>(uint64_t{0});
    drawing.set_state(generator.get_state());
    for (auto& value : stack_)
      if (value.isGenerator()) value = drawing;
    op_.callBoxed(&stack_);
    generator.set_state(drawing.get_state());
  }

  void call_with_default() {
    auto drawing = at::globalContext().defaultGenerator(c10::Device(c10::kCPU));
    const auto before = drawing.get_state();
    drawing.set_state(device_generator().get_state());
    op_.callBoxed(&stack_);
    device_generator().set_state(drawing.get_state());
    drawing.set_state(before);
  }

  IValue returned(const IValue& value) {
    if (value.isTensor()) return returned(value.toTensor());
    if (!value.isTensorList()) return value;
    std::vector<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(returned(each));
    return c10::List<Tensor>(list);
  }

  // The tensor that was passed in, a view of it, or a new one.
  Tensor returned(const Tensor& result) {
    if (!result.defined() || !is_ours_) return result;
    for (auto& [tensor, alias] : aliases_)
      if (alias.is_same(result)) return tensor;
    for (auto& [tensor, alias] : aliases_) {
      if (result.storage().data() != tensor.storage().data() || tensor.storage().nbytes() == 0)
        continue;
      c10::InferenceMode mode(tensor.is_inference());
      return tensor_over(tensor.storage(), result, DispatchKey::PrivateUse1);
    }
    return on_device(result);
  }

  const c10::OperatorHandle& op_;
  const std::string name_;
  torch::jit::Stack stack_;
  std::vector<std::pair<Tensor, Tensor>> aliases_;
  at::Generator generator_;
  bool is_ours_ = false;
  bool has_others_ = false;
  bool has_mask_ = false;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op).run(stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// ---- Operators that PyTorch asks of a device ------------------------------------------------------

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_memory,
                                   c10::DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_memory,
      c10::DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Scalar item(const Tensor& tensor) {
  tell("item");
  return at::_local_scalar_dense(on_cpu(tensor));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const auto& host = is_pretended(from) ? to : from;
  const bool crosses = is_pretended(from) != is_pretended(to);
  if (crosses && !(non_blocking && is_pinned(host.storage().data())))
    tell(is_pretended(from) ? "copy to the host" : "copy to the device");
  auto target = is_pretended(to) ? on_cpu(to) : to;
  target.copy_(is_pretended(from) ? on_cpu(from) : from);
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const Tensor& resize(const Tensor& tensor, c10::SymIntArrayRef size,
                     std::optional<at::MemoryFormat> format) {
  auto alias = on_cpu(tensor);
  alias.resize_(C10_AS_INTARRAYREF_SLOW(size), format);
  follow(tensor, alias);
  return tensor;
}

Tensor& place(Tensor& tensor, const at::Storage& storage, at::IntArrayRef size,
              at::IntArrayRef stride, int64_t offset) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

Tensor& set_storage_offset(Tensor& tensor, at::Storage storage, c10::SymInt offset,
                           c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return place(tensor, storage, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
               offset.expect_int());
}

Tensor& set_storage(Tensor& tensor, at::Storage storage) {
  const auto length = static_cast<int64_t>(storage.nbytes() / tensor.dtype().itemsize());
  return place(tensor, storage, {length}, {1}, 0);
}

Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  return place(tensor, source.storage(), source.sizes(), source.strides(), source.storage_offset());
}

Tensor as_strided(const Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  c10::InferenceMode mode(tensor.is_inference());
  auto view = tensor_over(tensor.storage(), tensor, DispatchKey::PrivateUse1);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? offset->expect_int() : tensor.storage_offset());
  return view;
}

void check_same(const Tensor& one, const Tensor& other) {
  TORCH_CHECK(one.device() == other.device(), "Expected all tensors to be on the same device, but "
              "found at least two devices, ", one.device(), " and ", other.device(),
              "! (convolution)");
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  check_same(input, weight);
  return on_device(at::convolution_symint(on_cpu(input), on_cpu(weight), on_cpu(bias), stride,
                                          padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  check_same(input, weight);
  check_same(gradient, weight);
  std::vector<c10::SymInt> bias_sizes{gradient.sym_size(1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
      on_cpu(gradient), on_cpu(input), on_cpu(weight), c10::SymIntArrayRef(bias_sizes), stride,
      padding, dilation, transposed, output_padding, groups, mask);
  return {on_device(of_input), on_device(of_weight), on_device(of_bias)};
}

// A parameter keeps its identity when ``Module.to`` moves it, as between the CPU and a GPU.
bool may_replace(const Tensor&, const Tensor&) { return true; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_local_scalar_dense", item);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage_storage_offset", set_storage_offset);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("as_strided", as_strided);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("_has_compatible_shallow_copy_type", may_replace);
  // Without these, PyTorch composes them of other operators, which round differently.
  for (const auto* name : {"native_group_norm", "native_layer_norm"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// PyTorch 2.6 looks for it here.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", may_replace);
}

// ---- Mixed precision ------------------------------------------------------------------------------

Tensor cast(const Tensor& tensor, at::ScalarType type) {
  const bool is_eligible = is_pretended(tensor) && tensor.is_floating_point() &&
                           tensor.scalar_type() != at::kDouble && tensor.scalar_type() != type;
  return is_eligible ? tensor.to(type) : tensor;
}

// Calls the operator with its float tensors in this type.
void call_in(const c10::OperatorHandle& op, torch::jit::Stack* stack, at::ScalarType type) {
  c10::impl::ExcludeDispatchKeyGuard once(DispatchKey::AutocastPrivateUse1);
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack->size() - count; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor() && value.toTensor().defined()) value = cast(value.toTensor(), type);
  }
  op.callBoxed(stack);
}

void in_low_precision(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_in(op, stack, at::autocast::get_autocast_dtype(PRETENDED));
}

void in_full_precision(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_in(op, stack, at::kFloat);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// The CPU's choice of types, for the operators that models and losses use.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  for (const auto* name : {"linear", "matmul", "mm", "addmm", "bmm", "conv1d", "conv2d"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_low_precision>());
  for (const auto* name : {"cross_entropy_loss", "nll_loss", "mse_loss", "huber_loss", "cdist",
                           "prod", "trace"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_full_precision>());
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  module.def("listen", &listen, "Call the function with the name of each wait; None to stop.");
  module.def("manual_seed", [](uint64_t seed) { device_generator().set_current_seed(seed); });
  module.def("get_rng_state", [] { return device_generator().get_state(); });
  module.def("set_rng_state", [](const Tensor& state) { device_generator().set_state(state); });
}
