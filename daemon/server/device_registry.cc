#include "daemon/server/device_registry.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/device/cuda/cuda_memory.h"
#include "allocator/device/cuda/nvml.h"
#include "allocator/device/simulated/simulated_memory.h"
#include "allocator/device/simulated/simulated_spec.h"
#include "base/nvidia_driver.h"
#include "daemon/leases/users.h"
#include "daemon/server/lock_file.h"
#include "lgpu/status.h"
#include "lgpu/visibility.h"

namespace lgpu::daemon {
namespace {

constexpr std::string_view kSimulateAdvice = "to try lgpu without a GPU: lgpud --simulate 2x1GiB";

// The list of the configuration file stands in the same place as the environment's, which wins.
bool FromEnvironment(const Config& config) {
  const auto found = config.origins.find("devices.visible");
  return found == config.origins.end() || found->second == "CUDA_VISIBLE_DEVICES";
}

std::string HiddenText(const Config& config) {
  if (!FromEnvironment(config)) {
    return absl::StrCat("left out by devices.visible = \"", config.cuda_visible_devices, "\" (",
                        config.origins.at("devices.visible"), ")");
  }
  return absl::StrCat("hidden from this lgpud by CUDA_VISIBLE_DEVICES=", config.cuda_visible_devices);
}

std::string WhyNotShown(const Config& config, const std::vector<RefusedGpu>& refused,
                        const std::string& uuid) {
  for (const RefusedGpu& gpu : refused) {
    if (gpu.about.uuid == uuid) return gpu.reason;
  }
  return config.has_cuda_visible_devices ? HiddenText(config) : "the CUDA driver does not show it";
}

// A card that only NVML knows.
PhysicalDevice HiddenDevice(const Nvml::Device& known) {
  PhysicalDevice device;
  device.uuid = known.uuid;
  device.name = known.name;
  device.pci_bus_id = known.pci_bus_id;
  device.total = known.total;
  device.granularity = 2_MiB;
  device.compute_major = known.compute_major;
  device.compute_minor = known.compute_minor;
  device.minor = known.minor;
  return device;
}

std::string OwnerOf(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0 ? " of user " + UserName(info.st_uid) : "";
}

// The system's daemon mends a directory that a user made first: its owner could keep root out, as root's
// service has no right to pass over modes, and could replace the locks of other daemons.
void MendLockDir(int directory) {
  struct stat info = {};
  if (::geteuid() != 0 || ::fstat(directory, &info) != 0 || info.st_uid == 0) return;
  if (::fchown(directory, 0, 0) == 0) ::fchmod(directory, 01777);
}

// Every user's daemons meet here, so the directory is open to all, sticky as /tmp is.
absl::StatusOr<UniqueFd> OpenLockDir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (::mkdir(path.c_str(), 0777) == 0) {
    ::chmod(path.c_str(), 01777);  // overrides the umask; its failure keeps other users' daemons out
  } else if (errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the directory for locks on cards ", path));
  }
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) {
    const int failure = errno;
    return absl::ErrnoToStatus(
        failure, absl::StrCat("cannot open the directory for locks on cards ", path, OwnerOf(path)));
  }
  MendLockDir(directory.get());
  return directory;
}

// A card whose lock file another daemon or user keeps is not served. It keeps no other card from being
// served. A lack of descriptors or memory is an error: a start that is tried again may have some.
absl::Status Serve(const absl::StatusOr<UniqueFd>& lock_dir, const Config& config,
                   DeviceRegistry::Card& card) {
  absl::StatusOr<UniqueFd> lock = lock_dir.ok() ? LockFile(lock_dir->get(), card.device.uuid + ".lock", 0666)
                                                : absl::StatusOr<UniqueFd>(lock_dir.status());
  if (lock.ok()) {
    const absl::Status written = WriteLockFile(
        lock->get(), absl::StrCat("the daemon of ", config.runtime_dir, " (pid ", ::getpid(), ")\n"));
    if (!written.ok()) {
      spdlog::warn("the lock of GPU {} does not name this lgpud: {}", card.index,
                   std::string(written.message()));
    }
    card.lock = *std::move(lock);
    card.served = true;
    card.not_served_because.clear();
    return absl::OkStatus();
  }
  if (absl::IsResourceExhausted(lock.status()) || absl::IsUnavailable(lock.status())) {
    return absl::Status(lock.status().code(),
                        absl::StrCat("cannot lock GPU ", card.index, " in ", config.lock_dir, ": ",
                                     std::string(lock.status().message())));
  }
  const std::string why(lock.status().message());
  card.not_served_because = absl::IsAlreadyExists(lock.status())
                                ? absl::StrCat("owned by ", why.empty() ? "another lgpud" : why)
                                : absl::StrCat("no lock in ", config.lock_dir, ": ", why);
  spdlog::warn("GPU {} ({}) is not served: {}", card.index, card.device.uuid, card.not_served_because);
  return absl::OkStatus();
}

absl::Status NothingServed(const std::vector<DeviceRegistry::Card>& cards) {
  std::string text = "no usable GPU: this lgpud can serve none of the machine's cards";
  for (const DeviceRegistry::Card& card : cards) {
    absl::StrAppend(&text, "\n  GPU ", card.index, " ", card.device.name, " ", card.device.uuid, ": ",
                    card.not_served_because);
  }
  absl::StrAppend(&text, "\n  stop the daemon that owns them, or change CUDA_VISIBLE_DEVICES; ",
                  std::string(kSimulateAdvice));
  return absl::FailedPreconditionError(text);
}

}  // namespace

DeviceRegistry::Card& DeviceRegistry::AddCard(const PhysicalDevice& device, int backend_device,
                                              std::string not_served_because) {
  Card card;
  card.index = static_cast<int>(cards_.size());
  card.backend_device = backend_device;
  card.device = device;
  card.not_served_because = std::move(not_served_because);
  return cards_.emplace_back(std::move(card));
}

absl::Status DeviceRegistry::OpenSimulated(const Config& config) {
  SimulatedBackendOptions options;
  int index = 0;
  for (const SimulatedDeviceConfig& simulated : config.simulated) {
    PhysicalDevice device = SimulatedDevice(index++, simulated.memory, config.runtime_dir);
    if (!simulated.uuid.empty()) device.uuid = simulated.uuid;
    device.name = simulated.name;
    options.devices.push_back(std::move(device));
    options.sparse = options.sparse || simulated.sparse;
  }
  std::vector<Bytes> sizes;
  for (const PhysicalDevice& device : options.devices) sizes.push_back(device.total);
  const std::string warning = options.sparse ? "" : MoreThanTheMachineHas(sizes);
  if (!warning.empty()) spdlog::warn("{}; simulate less, or set sparse in [[simulated_device]]", warning);
  backend_ = MakeSimulatedMemory(std::move(options));
  simulated_ = true;
  std::vector<std::string> uuids;
  for (const PhysicalDevice& device : backend_->devices()) {
    AddCard(device, static_cast<int>(cards_.size()), HiddenText(config));
    uuids.push_back(device.uuid);
  }
  // The cards are in PCI order; simulated ones are equally fast, so CUDA_DEVICE_ORDER changes nothing.
  std::optional<std::string_view> visible;
  if (config.has_cuda_visible_devices) visible = config.cuda_visible_devices;
  for (const int index_of_card : VisibleDevices(visible, uuids)) {
    cards_[static_cast<std::size_t>(index_of_card)].not_served_because.clear();
  }
  return absl::OkStatus();
}

// The driver has read CUDA_VISIBLE_DEVICES itself: the cards that it shows are visible.
absl::Status DeviceRegistry::OpenCuda(const Config& config) {
  absl::StatusOr<std::shared_ptr<Nvml>> nvml = Nvml::Open();
  if (!nvml.ok()) accounting_note_ = std::string(nvml.status().message());
  absl::StatusOr<CudaMemory> cuda = OpenCudaMemory(nvml.value_or(nullptr));
  if (!cuda.ok()) {
    return absl::Status(
        cuda.status().code(),
        absl::StrCat("no usable GPU: ", std::string(cuda.status().message()), "\n  ",
                     HasNvidiaDriver()
                         ? "this machine has an NVIDIA driver (nvidia-smi says more)"
                         : "this machine has no NVIDIA driver: on Debian, with the sections non-free "
                           "and non-free-firmware, apt-get install nvidia-driver, then restart it",
                     "\n  ", std::string(kSimulateAdvice)));
  }
  backend_ = std::move(cuda->memory);
  std::vector<Nvml::Device> machine;
  if (nvml.ok()) {
    absl::StatusOr<std::vector<Nvml::Device>> known = (*nvml)->Devices();
    if (known.ok()) machine = *std::move(known);
  }
  const std::vector<PhysicalDevice>& shown = backend_->devices();
  std::vector<bool> listed(shown.size(), false);
  for (const Nvml::Device& known : machine) {
    const auto same = std::find_if(shown.begin(), shown.end(),
                                   [&](const PhysicalDevice& device) { return device.uuid == known.uuid; });
    if (same == shown.end()) {
      AddCard(HiddenDevice(known), -1, WhyNotShown(config, cuda->refused, known.uuid));
      continue;
    }
    listed[static_cast<std::size_t>(same - shown.begin())] = true;
    AddCard(*same, static_cast<int>(same - shown.begin()), "").device.minor = known.minor;
  }
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (!listed[i]) AddCard(shown[i], static_cast<int>(i), "");
  }
  if (!machine.empty()) return absl::OkStatus();
  for (const RefusedGpu& gpu : cuda->refused) AddCard(gpu.about, -1, gpu.reason);
  return absl::OkStatus();
}

void DeviceRegistry::Hide(const Config& config) {
  if (!config.has_cuda_visible_devices || FromEnvironment(config)) return;
  std::vector<std::string> uuids;
  for (const Card& card : cards_) uuids.push_back(card.device.uuid);
  const std::vector<int> visible = VisibleDevices(config.cuda_visible_devices, uuids);
  for (Card& card : cards_) {
    const bool shown = std::find(visible.begin(), visible.end(), card.index) != visible.end();
    if (!shown && card.not_served_because.empty()) card.not_served_because = HiddenText(config);
  }
}

absl::StatusOr<std::unique_ptr<DeviceRegistry>> DeviceRegistry::Look(const Config& config) {
  std::unique_ptr<DeviceRegistry> registry(new DeviceRegistry());
  LGPU_RETURN_IF_ERROR(config.simulated.empty() ? registry->OpenCuda(config)
                                                : registry->OpenSimulated(config));
  registry->Hide(config);
  return registry;
}

absl::StatusOr<std::unique_ptr<DeviceRegistry>> DeviceRegistry::Open(const Config& config) {
  LGPU_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRegistry> registry, Look(config));
  const absl::StatusOr<UniqueFd> lock_dir = OpenLockDir(config.lock_dir);
  bool any_served = false;
  for (Card& card : registry->cards_) {
    LGPU_RETURN_IF_ERROR(CheckUuid(card.device.uuid));  // it is a file name of the lock directory
    if (!card.not_served_because.empty()) continue;
    LGPU_RETURN_IF_ERROR(Serve(lock_dir, config, card));
    any_served = any_served || card.served;
  }
  if (!any_served) return NothingServed(registry->cards_);
  return registry;
}

}  // namespace lgpu::daemon
