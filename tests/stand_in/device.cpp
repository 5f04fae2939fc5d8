// A "cuda" device made of host memory, for the CPU build of torch.
//
// Tensors on it have host memory of their own and the dispatch key CUDA. Every operator without a kernel for that key
// is called with views of the same bytes as CPU tensors, so a mixture of devices still raises, as on a GPU. Streams are
// numbers: work is done at once, but each stream has a vector clock, which shows where a stream uses memory without
// having waited for its writer, and where memory is freed while another stream may still use it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorShape.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/extension.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::IValue;
using c10::StreamId;
using StreamKey = std::pair<DeviceIndex, StreamId>;
using Clock = std::map<StreamKey, uint64_t>;  // stream -> number of its last piece of work

constexpr auto CUDA = c10::DeviceType::CUDA;
constexpr int MOST_DEVICES = 16;

int n_devices = 1;
thread_local DeviceIndex current_device = 0;
thread_local std::array<StreamId, MOST_DEVICES> current_streams{};

// ---------------------------------------------------------------------------------------- streams and what they know

struct Collective {
  std::string name, group;
  StreamId stream;
  int64_t numel;
};

struct Block;

struct Ledger {
  std::recursive_mutex mutex;
  std::map<StreamKey, Clock> known;  // stream -> the work of each stream that comes before its next piece of work
  Clock host;                        // the work for which the host has waited
  std::vector<std::string> faults;
  std::vector<Collective> collectives;
  std::map<std::string, int64_t> operators;  // that were passed on to the CPU
  std::set<std::pair<const void*, const void*>> pinned;  // first byte, end
  StreamId last_stream = 0;
};
Ledger& ledger() {
  static auto* one = new Ledger();  // never destroyed: tensors may outlive all else
  return *one;
}
using Lock = std::lock_guard<std::recursive_mutex>;

int sync_mode = 0;  // of torch.cuda.set_sync_debug_mode: 0 quiet, 1 warns, 2 raises

StreamKey current_stream(DeviceIndex device) { return {device, current_streams[device]}; }

void merge(Clock& into, const Clock& other) {
  for (const auto& [stream, tick] : other) into[stream] = std::max(into[stream], tick);
}

bool covers(const Clock& clock, StreamKey stream, uint64_t tick) {
  auto found = clock.find(stream);
  return found != clock.end() && found->second >= tick;
}

/// Count a place where the host waits for the device: for all work on `stream` so far.
void host_waits(StreamKey stream) {
  {
    Lock lock(ledger().mutex);
    merge(ledger().host, ledger().known[stream]);
  }
  if (sync_mode == 2) TORCH_CHECK(false, "called a synchronizing CUDA operation");
  if (sync_mode == 1) TORCH_WARN("called a synchronizing CUDA operation");
}
void host_waits() { host_waits(current_stream(current_device)); }

std::string python_place() {
  if (!Py_IsInitialized()) return "";
  pybind11::gil_scoped_acquire gil;
  try {
    std::string place;
    for (auto frame : pybind11::module_::import("traceback").attr("format_stack")()) place += frame.cast<std::string>();
    return "\n" + place;
  } catch (...) {
    PyErr_Clear();
    return "";
  }
}

std::string name_of(StreamKey stream) {
  return "stream " + std::to_string(stream.second) + " of GPU " + std::to_string(int(stream.first));
}

/// Note faults with the place of the Python that runs; without the lock, since Python has one of its own.
void note_faults(const std::vector<std::string>& texts) {
  for (const auto& text : texts) {
    auto place = python_place();
    Lock lock(ledger().mutex);
    if (ledger().faults.size() < 50) ledger().faults.push_back(text + place);
  }
}

// -------------------------------------------------------------------------------------------------- memory of a device

/// The context of device memory: its own bytes, or those of a CPU result.
struct Block {
  Block(Device device, size_t n) : stream(current_stream(device.index())), n_bytes(n) {}
  ~Block() {
    std::free(owned);
    std::vector<std::string> faults;
    {
      Lock lock(ledger().mutex);
      const auto& known = ledger().known[stream];
      Clock until = known;  // the memory is free for others after the work of these streams so far
      merge(until, ledger().host);
      for (const auto& other : recorded) merge(until, ledger().known[other]);
      for (const auto& [user, tick] : uses)
        if (user != stream && !covers(until, user, tick))
          faults.push_back("memory of " + name_of(stream) + " (" + std::to_string(n_bytes) + " bytes) is freed while " +
                           name_of(user) + " may use it (" + last_use[user] + "): record_stream is missing");
    }
    note_faults(faults);
  }
  void* owned = nullptr;
  c10::Storage shared;  // of a CPU tensor with the same bytes
  StreamKey stream;
  size_t n_bytes;
  Clock uses;
  std::map<StreamKey, std::string> last_use;
  std::set<StreamKey> recorded;
  StreamKey writer{-1, 0};
  uint64_t written = 0;
};

void delete_block(void* block) { delete static_cast<Block*>(block); }

Block* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto& pointer = tensor.storage().data_ptr();
  return pointer.get_deleter() == &delete_block ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

struct DeviceAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    Device device(CUDA, current_device);
    auto* block = new Block(device, n);
    if (n) block->owned = std::aligned_alloc(64, (n + 63) / 64 * 64);
    return {block->owned, block, &delete_block, device};
  }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};
DeviceAllocator device_allocator;

void free_pinned(void* start) {
  if (!start) return;
  {
    Lock lock(ledger().mutex);
    auto& pinned = ledger().pinned;
    pinned.erase(pinned.lower_bound({start, nullptr}));
  }
  std::free(start);
}

struct PinnedAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    auto size = (std::max<size_t>(n, 1) + 63) / 64 * 64;
    auto* start = static_cast<char*>(std::aligned_alloc(64, size));
    Lock lock(ledger().mutex);
    ledger().pinned.insert({start, start + size});
    return {start, start, &free_pinned, Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
};
PinnedAllocator pinned_allocator;

bool is_pinned(const void* place) {
  Lock lock(ledger().mutex);
  auto& pinned = ledger().pinned;
  auto after = pinned.upper_bound({place, reinterpret_cast<const void*>(UINTPTR_MAX)});
  return after != pinned.begin() && std::prev(after)->second > place;
}

/// Note that the next piece of work of the current stream reads, and possibly writes, the tensors.
class Work {
 public:
  Work(std::string name, DeviceIndex device) : name_(std::move(name)), stream_(current_stream(device)) {
    Lock lock(ledger().mutex);
    auto& known = ledger().known[stream_];
    merge(known, ledger().host);
    tick_ = ++known[stream_];
  }
  void reads(const at::Tensor& tensor) { uses(tensor, false); }
  void writes(const at::Tensor& tensor) { uses(tensor, true); }

 private:
  void uses(const at::Tensor& tensor, bool does_write) {
    auto* block = block_of(tensor);
    if (!block) return;
    std::vector<std::string> faults;
    {
      Lock lock(ledger().mutex);
      const auto& known = ledger().known[stream_];
      if (block->writer.first >= 0 && block->writer != stream_ && !covers(known, block->writer, block->written))
        faults.push_back(name_ + " on " + name_of(stream_) + " uses what " + name_of(block->writer) +
                         " writes, without waiting for it");
      if (does_write) {
        for (const auto& [user, tick] : block->uses)
          if (user != stream_ && !covers(known, user, tick))
            faults.push_back(name_ + " on " + name_of(stream_) + " overwrites what " + name_of(user) +
                             " may still use (" + block->last_use[user] + ")");
        block->writer = stream_;
        block->written = tick_;
      }
      block->uses[stream_] = tick_;
      if (stream_ != block->stream) block->last_use[stream_] = name_;
    }
    note_faults(faults);
  }
  std::string name_;
  StreamKey stream_;
  uint64_t tick_;
};

// ------------------------------------------------------------------------------------- the same bytes on both devices

at::Tensor with_bytes(const at::Tensor& like, c10::DataPtr pointer, DispatchKey key, c10::Allocator* allocator) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), like.storage().nbytes(), std::move(pointer), allocator, true);
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return result;
}

using Storages = std::unordered_map<const c10::StorageImpl*, c10::Storage>;  // host storage -> that of the device

at::Tensor to_host(const at::Tensor& tensor, Storages* storages = nullptr) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  if (tensor.layout() == c10::kSparseCsr)
    return at::_sparse_csr_tensor_unsafe(to_host(tensor.crow_indices(), storages),
                                         to_host(tensor.col_indices(), storages), to_host(tensor.values(), storages),
                                         tensor.sizes(), tensor.options().device(c10::kCPU));
  auto* kept = new c10::Storage(tensor.storage());  // the memory lives as long as either tensor
  c10::DataPtr pointer(const_cast<void*>(tensor.storage().data()), kept,
                       [](void* storage) { delete static_cast<c10::Storage*>(storage); }, Device(c10::kCPU));
  auto host = with_bytes(tensor, std::move(pointer), DispatchKey::CPU, c10::GetAllocator(c10::kCPU));
  if (storages) storages->emplace(host.storage().unsafeGetStorageImpl(), tensor.storage());
  return host;
}

at::Tensor to_device(const at::Tensor& tensor, DeviceIndex device, const Storages& storages = {}) {
  if (!tensor.defined() || tensor.is_cuda()) return tensor;
  if (tensor.layout() == c10::kSparseCsr)
    return at::_sparse_csr_tensor_unsafe(to_device(tensor.crow_indices(), device, storages),
                                         to_device(tensor.col_indices(), device, storages),
                                         to_device(tensor.values(), device, storages), tensor.sizes(),
                                         tensor.options().device(Device(CUDA, device)));
  auto found = storages.find(tensor.storage().unsafeGetStorageImpl());
  if (found != storages.end() && found->second.data() == tensor.storage().data()) {  // else a kernel has resized it
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(found->second),
                                                         c10::DispatchKeySet(DispatchKey::CUDA), tensor.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return view;
  }
  auto* block = new Block(Device(CUDA, device), tensor.storage().nbytes());
  block->shared = tensor.storage();
  c10::DataPtr pointer(const_cast<void*>(tensor.storage().data()), block, &delete_block, Device(CUDA, device));
  return with_bytes(tensor, std::move(pointer), DispatchKey::CUDA, &device_allocator);
}

// ------------------------------------------------------------------------------------ an operator, called on the CPU

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

/// Return whether the CUDA kernel of an operator asks the device for a number, or copies one there and waits.
bool kernel_waits(const std::string& name, const std::vector<IValue>& inputs) {
  static const std::set<std::string> waiting = {
      "aten::nonzero", "aten::nonzero.out", "aten::masked_select", "aten::masked_select.out", "aten::_unique",
      "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive",
      "aten::bincount", "aten::equal", "aten::_local_scalar_dense", "aten::is_set_to"};
  if (waiting.count(name)) return true;
  if (name == "aten::repeat_interleave.Tensor") return inputs[1].isNone();
  if (starts_with(name, "fbgemm::permute_2D_sparse_data") || starts_with(name, "fbgemm::permute_1D_sparse_data"))
    return inputs.back().isNone();
  if (starts_with(name, "aten::index.") || starts_with(name, "aten::index_put") ||
      starts_with(name, "aten::_index_put_impl")) {
    bool is_put = !starts_with(name, "aten::index.");
    int n_masks = 0, n_indices = 0, n_elsewhere = 0;
    for (const std::optional<at::Tensor>& index : inputs[1].toOptionalTensorList().vec()) {
      if (!index || !index->defined()) continue;
      n_indices++;
      n_masks += index->scalar_type() == at::kBool || index->scalar_type() == at::kByte;
      n_elsewhere += index->is_cpu();
    }
    bool is_number = is_put && inputs[2].toTensor().is_cpu();
    if (is_number && n_indices == 1 && n_masks == 1 && inputs[2].toTensor().numel() == 1)
      return n_elsewhere > 0;  // masked_fill
    return n_masks || n_elsewhere || is_number;
  }
  return false;
}

bool may_mix_devices(const std::string& name) {
  return starts_with(name, "aten::index.") || starts_with(name, "aten::index_put") ||
         starts_with(name, "aten::_index_put_impl") || starts_with(name, "aten::_local_scalar");
}

/// Round the factors of a product to the 10 bits of TF32, if torch would let a GPU do so.
at::Tensor rounded(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.scalar_type() != at::kFloat || !tensor.is_cpu()) return tensor;
  auto bits = tensor.contiguous().view(at::kInt);
  return bits.add(1 << 12).bitwise_and(~((1 << 13) - 1)).view(at::kFloat);
}

class Passage {
 public:
  explicit Passage(std::string name) : name_(std::move(name)) {}

  IValue host(const IValue& value, bool is_written) {
    if (value.isTensor()) return one(value.toTensor(), is_written);
    if (value.isTensorList()) {
      c10::List<at::Tensor> hosts;
      for (const at::Tensor& tensor : value.toTensorVector()) hosts.push_back(one(tensor, is_written));
      return hosts;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> hosts;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec())
        hosts.push_back(tensor ? std::optional<at::Tensor>(one(*tensor, is_written)) : std::nullopt);
      return hosts;
    }
    if (value.isList() && value.toList().size() && value.toList().get(0).isTensorList()) {
      c10::List<c10::List<at::Tensor>> lists;
      for (const IValue& part : value.toListRef()) lists.push_back(host(part, is_written).toTensorList());
      return lists;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      see(value.toDevice());
      return Device(c10::kCPU);
    }
    if (value.isGenerator() && value.toGenerator().device().is_cuda()) return at::detail::getDefaultCPUGenerator();
    return value;
  }

  IValue back(const IValue& value) {
    auto index = device().index();
    if (value.isTensor()) return to_device(value.toTensor(), index, storages_);
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(to_device(tensor, index, storages_));
      return tensors;
    }
    return value;
  }

  void check_devices() const {
    TORCH_CHECK(!has_two_, "Expected all tensors to be on the same device, but found at least two GPUs, in ", name_);
    TORCH_CHECK(!has_device_ || !has_host_ || may_mix_devices(name_),
                "Expected all tensors to be on the same device, but found at least two devices, cuda and cpu, in ",
                name_);
  }

  /// A kernel may have given an output other memory or another shape.
  void adopt_outputs() {
    for (auto& [own, host] : written_) {
      if (host.layout() != c10::kStrided) continue;
      if (host.const_data_ptr() == own.const_data_ptr() && host.sizes() == own.sizes() &&
          host.strides() == own.strides())
        continue;
      auto adopted = to_device(host, own.device().index(), storages_);
      auto* impl = own.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(adopted.storage());
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

  Device device() const { return device_.value_or(Device(CUDA, current_device)); }
  const std::vector<std::pair<at::Tensor, bool>>& used() const { return used_; }

 private:
  at::Tensor one(const at::Tensor& tensor, bool is_written) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      has_host_ = has_host_ || tensor.dim() > 0;
      return tensor;
    }
    see(tensor.device());
    used_.emplace_back(tensor, is_written);
    auto host = to_host(tensor, &storages_);
    if (is_written && host.layout() == c10::kStrided) written_.emplace_back(tensor, host);
    return host;
  }
  void see(Device device) {
    if (device.index() < 0) device = Device(CUDA, current_device);
    has_device_ = true;
    has_two_ = has_two_ || (device_ && *device_ != device);
    device_ = device;
  }
  std::string name_;
  std::optional<Device> device_;
  bool has_device_ = false, has_host_ = false, has_two_ = false;
  Storages storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // on the device, on the host
  std::vector<std::pair<at::Tensor, bool>> used_;
};

std::string alias_of(const c10::AliasInfo* info) {
  return info && info->isWrite() && !info->beforeSets().empty() ? info->beforeSets().begin()->toUnqualString() : "";
}

void note_use(Work& work, const Passage& passage) {
  for (const auto& [tensor, is_written] : passage.used()) is_written ? work.writes(tensor) : work.reads(tensor);
}

const auto BELOW = c10::autograd_dispatch_keyset | c10::DispatchKeySet(DispatchKey::ADInplaceOrView) |
                   c10::autocast_dispatch_keyset;

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto name = c10::toString(op.operator_name());
  const auto& schema = op.schema();
  auto inputs = torch::jit::pop(*stack, schema.arguments().size());
  {
    Lock lock(ledger().mutex);
    ledger().operators[name]++;
  }
  Passage passage(name);
  std::map<std::string, IValue> originals;  // alias -> what the caller gets back from an in-place operator
  std::vector<IValue> hosts;
  for (size_t i = 0; i < inputs.size(); i++) {
    auto alias = alias_of(schema.arguments()[i].alias_info());
    if (!alias.empty()) originals.emplace(alias, inputs[i]);
    hosts.push_back(passage.host(inputs[i], !alias.empty()));
  }
  passage.check_devices();
  if (kernel_waits(name, inputs)) host_waits(current_stream(passage.device().index()));
  static const std::set<std::string> products = {"aten::mm.out", "aten::bmm.out", "aten::addmm.out", "aten::baddbmm.out"};
  bool is_product = products.count(name);
  if (is_product && at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST) {
    size_t first = name.find("add") == std::string::npos ? 0 : 1;
    for (auto i : {first, first + 1}) hosts[i] = rounded(hosts[i].toTensor());
  }
  Work work(name, passage.device().index());
  note_use(work, passage);
  for (auto& host : hosts) stack->push_back(std::move(host));
  {
    c10::impl::ExcludeDispatchKeyGuard guard(BELOW);
    op.callBoxed(stack);
  }
  passage.adopt_outputs();
  auto outputs = torch::jit::pop(*stack, schema.returns().size());
  for (size_t i = 0; i < outputs.size(); i++) {
    auto original = originals.find(alias_of(schema.returns()[i].alias_info()));
    auto output = original != originals.end() ? original->second : passage.back(outputs[i]);
    if (output.isTensor() && original == originals.end()) work.writes(output.toTensor());
    if (output.isTensorList())
      for (const at::Tensor& tensor : output.toTensorVector()) work.writes(tensor);
    stack->push_back(std::move(output));
  }
}

// ------------------------------------------------------------------------------------------------- operators of its own

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(CUDA, current_device)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator,
                                   c10::DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(CUDA, current_device)));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &device_allocator, c10::DispatchKeySet(DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

/// The host waits for a copy, unless it is asynchronous; one to the host also needs pinned memory.
at::Tensor copy_between(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  auto device = to.is_cuda() ? to.device() : from.device();
  bool crosses = from.device() != to.device();
  Work work("aten::copy_", device.index());
  work.reads(from);
  work.writes(to);
  {
    c10::impl::ExcludeDispatchKeyGuard guard(BELOW);
    to_host(to).copy_(to_host(from).expand(to.sizes()));
  }
  if (crosses && (from.is_cpu() || to.is_cpu())) {
    bool is_pageable = to.is_cpu() && to.numel() && !is_pinned(to.const_data_ptr());
    if (!non_blocking || is_pageable) host_waits(current_stream(device.index()));
  }
  return to;
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  copy_between(from, to, non_blocking);
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_between(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  Work("aten::_local_scalar_dense", tensor.device().index()).reads(tensor);
  host_waits(current_stream(tensor.device().index()));
  return to_host(tensor).item();
}

const at::Tensor& resize_(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  size_t needed = (tensor.storage_offset() + tensor.numel()) * tensor.element_size();
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) {
    c10::DeviceGuard guard(tensor.device());
    auto memory = device_allocator.allocate(needed);
    if (storage->nbytes()) std::memcpy(memory.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(memory));
    storage->set_nbytes(needed);
  }
  return tensor;
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  if (auto* block = block_of(tensor)) {
    Lock lock(ledger().mutex);
    block->recorded.insert({stream.device_index(), stream.id()});
  }
}

at::Tensor as_strided(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor unfold(const at::Tensor& tensor, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(tensor, dimension, size, step);
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return tensor;
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& other) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(other.storage());
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  return tensor;
}

template <int member>
at::Tensor of_csr(const at::Tensor& tensor) {
  auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
  return (member == 0 ? impl->compressed_indices() : member == 1 ? impl->plain_indices() : impl->values()).alias();
}

// ------------------------------------------------------------------------------------------------------------ messages

/// Send by gloo what NCCL would send; like NCCL, refuse tensors that are not on a GPU.
void send_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto name = c10::toString(op.operator_name());
  auto inputs = torch::jit::pop(*stack, op.schema().arguments().size());
  Passage passage(name);
  std::vector<IValue> hosts;
  Collective collective{name, "", 0, 0};
  for (const auto& input : inputs) {
    hosts.push_back(passage.host(input, false));
    if (input.isCustomClass())
      try {
        collective.group = input.toCustomClass<c10d::ProcessGroup>()->getGroupName();
      } catch (const c10::Error&) {  // a ReduceOp
      }
  }
  passage.check_devices();
  Work work(name, passage.device().index());
  for (const auto& [tensor, is_written] : passage.used()) {
    collective.numel += tensor.numel();
    work.reads(tensor);
  }
  collective.stream = current_streams[passage.device().index()];
  {
    Lock lock(ledger().mutex);
    ledger().collectives.push_back(collective);
  }
  for (auto& host : hosts) stack->push_back(std::move(host));
  op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  auto outputs = torch::jit::pop(*stack, op.schema().returns().size());
  for (const auto& output : outputs) stack->push_back(passage.back(output));
}

struct NoTimer : public c10d::Timer {
  explicit NoTimer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return 0; }
};

// ------------------------------------------------------------------------------------------------------ guard and hooks

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  Device getDevice() const override { return {CUDA, current_device}; }
  void setDevice(Device device) const override { current_device = std::max<DeviceIndex>(device.index(), 0); }
  void uncheckedSetDevice(Device device) const noexcept override { setDevice(device); }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return n_devices; }

  static DeviceIndex index(Device device) { return device.has_index() ? device.index() : current_device; }
  static c10::Stream stream(StreamId id, Device device) {
    return c10::Stream(c10::Stream::UNSAFE, Device(CUDA, index(device)), id);
  }
  c10::Stream getStream(Device device) const override { return stream(current_streams[index(device)], device); }
  c10::Stream getDefaultStream(Device device) const override { return stream(0, device); }
  c10::Stream getNewStream(Device device, int) const override {
    Lock lock(ledger().mutex);
    return stream(++ledger().last_stream, device);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream other) const override {
    auto before = getStream(other.device());
    current_streams[other.device_index()] = other.id();
    return before;
  }
  static StreamKey key(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override { host_waits(key(stream)); }
  void synchronizeDevice(const DeviceIndex device) const override {
    Lock lock(ledger().mutex);
    for (auto& [stream, clock] : ledger().known)
      if (stream.first == device) merge(ledger().host, clock);
    host_waits(current_stream(device));
  }

  void record(void** event, const c10::Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    Lock lock(ledger().mutex);
    if (!*event) *event = new Clock();
    auto& known = ledger().known[key(stream)];
    merge(known, ledger().host);
    *static_cast<Clock*>(*event) = known;
  }
  void block(void* event, const c10::Stream& stream) const override {
    Lock lock(ledger().mutex);
    if (event) merge(ledger().known[key(stream)], *static_cast<Clock*>(event));
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override {
    {
      Lock lock(ledger().mutex);
      if (event) merge(ledger().host, *static_cast<Clock*>(event));
    }
    host_waits();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Clock*>(event); }
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 0.0; }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    if (pointer.get_deleter() != &delete_block) return;
    Lock lock(ledger().mutex);
    static_cast<Block*>(pointer.get_context())->recorded.insert(key(stream));
  }
};

struct Hooks : public at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return n_devices; }
  int getNumGPUs() const override { return n_devices; }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { ::current_device = device; }
  Device getDeviceFromPtr(void*) const override { return {CUDA, ::current_device}; }
  bool isPinnedPtr(const void* place) const override { return is_pinned(place); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void deviceSynchronize(DeviceIndex) const override { host_waits(); }
};

}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, NoTimer)
}
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_host>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrCUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_between);
  m.impl("_copy_from_and_resize", &copy_and_resize);
  m.impl("copy_", &copy_);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("resize_", &resize_);
  m.impl("record_stream", &record_stream);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrCUDA, m) {
  m.impl("crow_indices", &of_csr<0>);
  m.impl("col_indices", &of_csr<1>);
  m.impl("values", &of_csr<2>);
  m.impl("addmm", torch::CppFunction::makeFromBoxedFunction<&call_on_host>());
}

TORCH_LIBRARY_IMPL(c10d, CUDA, m) {
  for (auto name :
       {"broadcast_", "allreduce_", "allreduce_coalesced_", "allgather_", "_allgather_base_", "allgather_coalesced_",
        "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
        "reduce_scatter_tensor_coalesced_", "reduce_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&send_on_host>());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(CUDA)].store(new Guard());
  c10::SetAllocator(CUDA, &device_allocator);
  m.def("has_cuda", [] { return at::globalContext().hasCUDA(); });
  m.def("host", [](const at::Tensor& tensor) { return to_host(tensor); });
  m.def("device", [](const at::Tensor& tensor, int index) {
    auto result = to_device(tensor, index);
    Work("a lookup", index).writes(result);
    return result;
  });
  m.def("use", [](const std::string& name, const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& written) {
    Work work(name, current_device);
    for (const auto& tensor : read) work.reads(tensor);
    for (const auto& tensor : written) work.writes(tensor);
  });
  m.def("device_count", [] { return n_devices; });
  m.def("set_device_count", [](int n) { n_devices = n; });
  m.def("get_device", [] { return static_cast<int>(current_device); });
  m.def("set_device", [](int index) { current_device = static_cast<DeviceIndex>(index); });
  m.def("get_stream", [](int index) { return current_streams[index]; });
  m.def("set_stream", [](int index, int64_t id) { current_streams[index] = id; });
  m.def("synchronize", [](int index) { Guard().synchronizeDevice(static_cast<DeviceIndex>(index)); });
  m.def("get_sync_mode", [] { return sync_mode; });
  m.def("set_sync_mode", [](int mode) { sync_mode = mode; });
  m.def("take_faults", [] {
    Lock lock(ledger().mutex);
    return std::exchange(ledger().faults, {});
  });
  m.def("take_operators", [] {
    Lock lock(ledger().mutex);
    return std::exchange(ledger().operators, {});
  });
  m.def("take_collectives", [] {
    Lock lock(ledger().mutex);
    std::vector<std::tuple<std::string, std::string, int64_t, int64_t>> taken;
    for (const auto& each : ledger().collectives) taken.emplace_back(each.name, each.group, each.stream, each.numel);
    ledger().collectives.clear();
    return taken;
  });
}
