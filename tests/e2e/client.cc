// A program of the public API that runs a test's commands: it reads them from stdin, a line each, and answers
// each with one line, "ok ..." or "error CODE text", in which \n stands for a line break.
//
// Past the usual length, because it is one class of many short commands on the same contexts and tensors.

#include <lgpu/lgpu.h>
#include <lgpu/tensor_export.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using lgpu::Bytes;
using lgpu::Context;
using lgpu::Tensor;

using Words = std::vector<std::string>;

std::string Escape(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  return line;
}

std::string Error(const absl::Status& status) {
  return "error " + absl::StatusCodeToString(status.code()) + " " + Escape(std::string(status.message()));
}

std::string Answer(const absl::Status& status) { return status.ok() ? "ok" : Error(status); }

// Contexts that outlive main.
std::map<std::string, Context> left;

class Client {
 public:
  std::string Do(const Words& words) {
    const std::string& verb = words[0];
    if (verb == "open") return Open(words);
    if (verb == "alloc") return Allocate(words);
    if (verb == "free") return Free(words);
    if (verb == "read") return Read(words);
    if (verb == "work") return Work(words);
    if (verb == "sum") return Sum(words);
    if (verb == "move") return Move(words);
    if (verb == "visible") return Visible();
    if (verb == "ops") return Ops(words);
    if (verb == "stats") return Stats(words);
    if (verb == "trim") return Trim(words);
    if (verb == "product") return Product(words);
    if (verb == "multiply") return Multiply(words);
    if (verb == "multiplies") return Multiplies(words);
    if (verb == "precision") return Precision(words);
    if (verb == "workspace") return WorkspaceOf(words);
    if (verb == "numbers") return Numbers(words);
    if (verb == "digest") return Digest(words);
    if (verb == "block") return TakeBlock(words);
    if (verb == "unblock") return Answer(block_->memory.Free(block_->block, nullptr));
    if (verb == "suspend") return Answer(contexts_.at(words.at(1)).Suspend());
    if (verb == "resume") return Answer(contexts_.at(words.at(1)).Resume());
    if (verb == "close") return Answer(contexts_.at(words.at(1)).Close());
    if (verb == "leave") return Leave();
    if (verb == "drop") return Drop(words);
    if (verb == "churn") return Churn(words);
    if (verb == "fork") return Fork(words);
    if (verb == "forkhold") return ForkHold();
    if (verb == "threads") return Threads(words);
    if (verb == "exec") return Exec();
    if (verb == "rename") return ::prctl(PR_SET_NAME, words.at(1).c_str()) == 0 ? "ok" : "error prctl";
    if (verb == "resize") return Resize(words);
    if (verb == "rlimit") return Limit(words);
    if (verb == "setuid") return ::setuid(Number(words, 1)) == 0 ? "ok" : "error setuid";
    return "error no such command";
  }

 private:
  static std::uint32_t Number(const Words& words, std::size_t i) {
    return static_cast<std::uint32_t>(std::stoul(words.at(i)));
  }

  static lgpu::ContextOptions ParseOptions(const Words& words) {
    lgpu::ContextOptions options;
    lgpu::LogicalDeviceOptions device;
    int devices = 0;
    std::string cards;
    for (std::size_t i = 2; i < words.size(); ++i) {
      const std::string key = words[i].substr(0, words[i].find('='));
      const std::string value = words[i].substr(key.size() + 1);
      if (key == "limit") device.memory_limit = Bytes(std::stoull(value));
      if (key == "guarantee") device.guarantee = Bytes(std::stoull(value));
      if (key == "prealloc") device.mode = lgpu::MemoryMode::kPreallocate;
      if (key == "card") device.physical_device = value;
      if (key == "limit" || key == "card") devices = std::max(devices, 1);
      if (key == "devices") devices = std::stoi(value);
      if (key == "cards") cards = value;  // one digit for each logical device
      if (key == "lease") options.lease = value;
      if (key == "lease_name") options.lease_name = value;
      if (key == "endpoint") options.endpoint = value;
      if (key == "tf32") options.tensor_float_32 = value == "1";
      if (key == "soft") options.soft_device_placement = value == "1";
      if (key == "timeout") options.allocation_timeout = std::chrono::milliseconds(std::stoi(value));
    }
    if (cards.empty()) options.logical_devices.assign(static_cast<std::size_t>(devices), device);
    for (const char card : cards) {
      device.physical_device = std::string(1, card);
      options.logical_devices.push_back(device);
    }
    return options;
  }

  std::string Open(const Words& words) {
    absl::StatusOr<Context> context = Context::Create(ParseOptions(words));
    if (!context.ok()) return Error(context.status());
    const std::string lease = context->lease();
    contexts_.insert_or_assign(words.at(1), *std::move(context));
    return "ok " + lease;
  }

  // alloc CONTEXT ID BYTES: a tensor of so many bytes, on the first GPU.
  std::string Allocate(const Words& words) {
    const std::size_t count = std::stoull(words.at(3)) / sizeof(float);
    const std::vector<float> values(count, 1.0F);
    absl::StatusOr<Tensor> tensor =
        contexts_.at(words.at(1))
            .Constant<float>(lgpu::Shape{static_cast<std::int64_t>(count)}, std::span<const float>(values));
    if (!tensor.ok()) return Error(tensor.status());
    tensors_[words.at(2)] = *std::move(tensor);
    return "ok " + tensors_[words.at(2)].device();
  }

  // numbers CONTEXT ID BYTES SEED: as alloc, with elements that differ.
  std::string Numbers(const Words& words) {
    std::vector<std::int32_t> values(std::stoull(words.at(3)) / sizeof(std::int32_t));
    std::uint32_t state = Number(words, 4);
    for (std::int32_t& value : values) {
      value = static_cast<std::int32_t>(state = state * 1664525U + 1013904223U);
    }
    absl::StatusOr<Tensor> tensor = contexts_.at(words.at(1)).Constant<std::int32_t>(values);
    if (!tensor.ok()) return Error(tensor.status());
    tensors_[words.at(2)] = *std::move(tensor);
    return Digest({"digest", words.at(2)});
  }

  // block CONTEXT BYTES: a block of the program's own on the first GPU, until `unblock`.
  std::string TakeBlock(const Words& words) {
    absl::StatusOr<lgpu::LogicalMemory> memory = contexts_.at(words.at(1)).Memory("GPU:0");
    if (!memory.ok()) return Error(memory.status());
    const absl::StatusOr<lgpu::Block> block = memory->Allocate(Bytes(std::stoull(words.at(2))));
    if (!block.ok()) return Error(block.status());
    block_.emplace(OwnBlock{*std::move(memory), *block});
    return "ok";
  }

  // digest ID: "ok ADDRESS HASH", of all bytes of a tensor of numbers.
  std::string Digest(const Words& words) {
    const Tensor& tensor = tensors_.at(words.at(1));
    std::ostringstream out;
    {
      // Nothing can be suspended meanwhile.
      const absl::StatusOr<lgpu::TensorExport> lent = tensor.Export({.orders_stream = false});
      if (!lent.ok()) return Error(lent.status());
      out << "ok " << lent->data() << " ";
    }
    const auto values = tensor.ToVector<std::int32_t>();
    if (!values.ok()) return Error(values.status());
    std::uint64_t hash = 1469598103934665603U;
    for (const std::int32_t value : *values) {
      hash = (hash ^ static_cast<std::uint32_t>(value)) * 1099511628211U;
    }
    out << hash;
    return out.str();
  }

  std::string Free(const Words& words) { return tensors_.erase(words.at(1)) == 1 ? "ok" : "error none"; }

  // The contexts are destroyed with the process's static objects.
  std::string Leave() {
    tensors_.clear();
    left.swap(contexts_);
    return "ok";
  }

  std::string Drop(const Words& words) { return contexts_.erase(words.at(1)) == 1 ? "ok" : "error none"; }

  std::string Read(const Words& words) {
    const auto values = tensors_.at(words.at(1)).ToVector<float>();
    if (!values.ok()) return Error(values.status());
    double sum = 0;  // a float stops at 2^24
    for (const float value : *values) sum += value;
    std::ostringstream out;
    out << "ok " << sum;
    return out.str();
  }

  // sum CONTEXT ID COUNT: add_n of so many times tensor ID: "ok SUM DEVICE".
  std::string Sum(const Words& words) {
    const std::vector<Tensor> inputs(Number(words, 3), tensors_.at(words.at(2)));
    const absl::StatusOr<Tensor> sum = lgpu::AddN(inputs);
    if (!sum.ok()) return Error(sum.status());
    tensors_["sum"] = *sum;
    return Read({"read", "sum"}) + " " + std::string(sum->device());
  }

  // move ID DEVICE: the tensor becomes a copy of itself there.
  std::string Move(const Words& words) {
    absl::StatusOr<Tensor> moved = lgpu::CopyToDevice(tensors_.at(words.at(1)), words.at(2));
    if (!moved.ok()) return Error(moved.status());
    tensors_[words.at(1)] = *std::move(moved);
    return "ok " + std::string(tensors_[words.at(1)].device());
  }

  // visible: the UUIDs of the GPUs that this process may use, in its order.
  static std::string Visible() {
    const absl::StatusOr<lgpu::Config> config = lgpu::Config::Create({});
    if (!config.ok()) return Error(config.status());
    std::string line = "ok";
    for (const lgpu::PhysicalDeviceInfo& device : config->ListPhysicalDevices("GPU")) {
      line += " " + device.card_uuid;
    }
    return line;
  }

  // work CONTEXT [REPEAT]: matmul on the GPU and add_n on the CPU, with the values that they must have.
  std::string Work(const Words& words) {
    const int repeat = words.size() > 2 ? std::stoi(words[2]) : 1;
    for (int i = 0; i < repeat; ++i) {
      if (absl::Status status = WorkOnce(contexts_.at(words.at(1))); !status.ok()) return Error(status);
    }
    return "ok";
  }

  static absl::Status WorkOnce(const Context& gpu) {
    LGPU_ASSIGN_OR_RETURN(const Tensor a, gpu.Constant<float>({{1, 2, 3}, {4, 5, 6}}));
    LGPU_ASSIGN_OR_RETURN(const Tensor b, gpu.Constant<float>({{1, 2}, {3, 4}, {5, 6}}));
    LGPU_ASSIGN_OR_RETURN(const Tensor c, lgpu::MatMul(a, b));
    const lgpu::DeviceScope cpu(gpu, "/CPU:0");
    LGPU_ASSIGN_OR_RETURN(const Tensor sum, lgpu::AddN({c, c}));
    LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, sum.ToVector<float>());
    if (values != std::vector<float>{44, 56, 98, 128}) return absl::InternalError("wrong values");
    return absl::OkStatus();
  }

  // ops CONTEXT N: N small matmuls between two calls that a tracer sees.
  std::string Ops(const Words& words) {
    const Context& gpu = contexts_.at(words.at(1));
    const auto a = gpu.Constant<float>({{1, 2}, {3, 4}});
    if (!a.ok()) return Error(a.status());
    const int count = std::stoi(words.at(2));
    absl::Status status = RunOps(*a, count);  // the heap gets as large as it has to be
    ::access("/lgpu-ops-begin", F_OK);
    if (status.ok()) status = RunOps(*a, count);
    ::access("/lgpu-ops-end", F_OK);
    return Answer(status);
  }

  static absl::Status RunOps(const Tensor& a, int count) {
    for (int i = 0; i < count; ++i) {
      LGPU_ASSIGN_OR_RETURN(const Tensor product, lgpu::MatMul(a, a));
      LGPU_ASSIGN_OR_RETURN(const Tensor sum, lgpu::AddN({product, a}));
    }
    return absl::OkStatus();
  }

  // product CONTEXT N [DEVICE]: an NxN matrix of ones by itself: "ok SUM DEVICE".
  std::string Product(const Words& words) {
    const Context& gpu = contexts_.at(words.at(1));
    std::optional<lgpu::DeviceScope> scope;
    if (words.size() > 3) scope.emplace(gpu, words[3]);
    const std::int64_t n = Number(words, 2);
    const std::vector<float> ones(static_cast<std::size_t>(n * n), 1.0F);
    const auto a = gpu.Constant<float>(lgpu::Shape{n, n}, std::span<const float>(ones));
    if (!a.ok()) return Error(a.status());
    const absl::StatusOr<Tensor> product = lgpu::MatMul(*a, *a);
    if (!product.ok()) return Error(product.status());
    tensors_["product"] = *product;
    return Read({"read", "product"}) + " " + std::string(product->device());
  }

  // multiply CONTEXT M K N A B: the product of [M,K] and [K,N] matrices of which each element differs from
  // its neighbours; A, B: 1 where it lies transposed. "ok DEVICE" if every element is right.
  std::string Multiply(const Words& words) {
    const absl::StatusOr<std::string> device =
        MultiplyOnce(contexts_.at(words.at(1)), {Number(words, 2), Number(words, 3), Number(words, 4)},
                     words.at(5) == "1", words.at(6) == "1", 1);
    return device.ok() ? "ok " + *device : Error(device.status());
  }

  static std::vector<float> Matrix(std::int64_t rows, std::int64_t columns, bool transposed,
                                   std::int64_t seed) {
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t at = transposed ? column * rows + row : row * columns + column;
        values[static_cast<std::size_t>(at)] = static_cast<float>((row * 7 + column * 3 + seed) % 11 - 5);
      }
    }
    return values;
  }

  struct Sizes {
    std::int64_t m, k, n;
  };
  static absl::StatusOr<std::string> MultiplyOnce(const Context& gpu, const Sizes& sizes, bool transpose_a,
                                                  bool transpose_b, std::int64_t seed) {
    const auto [m, k, n] = sizes;
    const auto constant = [&](std::int64_t rows, std::int64_t columns, bool transposed, std::int64_t salt) {
      const std::vector<float> values = Matrix(rows, columns, transposed, salt);
      return gpu.Constant<float>(transposed ? lgpu::Shape{columns, rows} : lgpu::Shape{rows, columns},
                                 std::span<const float>(values));
    };
    LGPU_ASSIGN_OR_RETURN(const Tensor a, constant(m, k, transpose_a, seed));
    LGPU_ASSIGN_OR_RETURN(const Tensor b, constant(k, n, transpose_b, seed + 1));
    LGPU_ASSIGN_OR_RETURN(const Tensor product,
                          lgpu::MatMul(a, b, {.transpose_a = transpose_a, .transpose_b = transpose_b}));
    LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, product.ToVector<float>());
    const std::vector<float> first = Matrix(m, k, false, seed);
    const std::vector<float> second = Matrix(k, n, false, seed + 1);
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        float sum = 0;  // of whole numbers: exact in every order
        for (std::int64_t i = 0; i < k; ++i) {
          sum +=
              first[static_cast<std::size_t>(row * k + i)] * second[static_cast<std::size_t>(i * n + column)];
        }
        const float got = values[static_cast<std::size_t>(row * n + column)];
        if (got != sum) {
          std::ostringstream text;
          text << "element " << row << "," << column << " is " << got << ", not " << sum;
          return absl::InternalError(text.str());
        }
      }
    }
    return std::string(product.device());
  }

  // multiplies CONTEXT THREADS REPEAT: long sums, of other numbers in each thread.
  std::string Multiplies(const Words& words) {
    const Context& gpu = contexts_.at(words.at(1));
    std::vector<absl::Status> results(Number(words, 2));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < results.size(); ++i) {
      threads.emplace_back([&, i, repeat = Number(words, 3)] {
        for (std::uint32_t round = 0; round < repeat && results[i].ok(); ++round) {
          results[i] =
              MultiplyOnce(gpu, {8, 600, 8}, false, false, static_cast<std::int64_t>(i * 2)).status();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& result : results) {
      if (!result.ok()) return Error(result);
    }
    return "ok";
  }

  // precision CONTEXT: "ok exact" if a product keeps a factor of 1 + 2^-12, "ok rounded" if it takes it
  // for 1.
  std::string Precision(const Words& words) {
    const Context& gpu = contexts_.at(words.at(1));
    constexpr std::int64_t kSize = 64;
    std::vector<float> values(kSize * kSize);
    for (std::size_t i = 0; i < kSize; ++i) values[i * kSize + i] = 1;
    const lgpu::Shape shape{kSize, kSize};
    const auto one = gpu.Constant<float>(shape, std::span<const float>(values));
    for (float& value : values) value *= 1 + 0x1p-12F;
    const auto more = gpu.Constant<float>(shape, std::span<const float>(values));
    if (!one.ok() || !more.ok()) return "error no tensors";
    const auto product = lgpu::MatMul(*more, *one);
    const auto got =
        product.ok() ? product->ToVector<float>() : absl::StatusOr<std::vector<float>>(product.status());
    if (!got.ok()) return Error(got.status());
    return got->front() == 1 ? "ok rounded" : got->front() == values.front() ? "ok exact" : "error wrong";
  }

  std::string WorkspaceOf(const Words& words) {
    const auto stats = contexts_.at(words.at(1)).GetMemoryStats("GPU:0");
    if (!stats.ok()) return Error(stats.status());
    return "ok " + std::to_string(stats->workspace.count());
  }

  std::string Stats(const Words& words) {
    const auto stats = contexts_.at(words.at(1)).GetMemoryStats("GPU:0");
    if (!stats.ok()) return Error(stats.status());
    std::ostringstream out;
    out << "ok " << stats->used.count() << " " << stats->held.count() << " " << stats->peak_used.count();
    return out.str();
  }

  std::string Trim(const Words& words) {
    const auto trimmed = contexts_.at(words.at(1)).Trim();
    return trimmed.ok() ? "ok " + std::to_string(trimmed->count()) : Error(trimmed.status());
  }

  // churn N: so many contexts, one after the other, each with a tensor and some work.
  std::string Churn(const Words& words) {
    for (int i = 0; i < std::stoi(words.at(1)); ++i) {
      absl::StatusOr<Context> context =
          Context::Create({.logical_devices = {{.memory_limit = Bytes(std::uint64_t{8} << 20)}}});
      if (!context.ok()) return Error(context.status());
      if (absl::Status status = WorkOnce(*context); !status.ok()) return Error(status);
      if (absl::Status status = context->Close(); !status.ok()) return Error(status);
    }
    return "ok";
  }

  // fork CONTEXT: the child tries its copies of the context and a tensor; the parent passes the answers on.
  std::string Fork(const Words& words) {
    int pipe[2];
    if (::pipe(pipe) != 0) return "error pipe";
    const pid_t child = ::fork();
    if (child == 0) {
      const Context& gpu = contexts_.at(words.at(1));
      const auto tensor = gpu.Constant<float>({1, 2});
      const absl::Status work = tensor.ok() ? absl::OkStatus() : tensor.status();
      const absl::Status read =
          tensors_.empty() ? absl::OkStatus() : tensors_.begin()->second.ToVector<float>().status();
      const std::string text = Answer(work) + "|" + Answer(read);
      [[maybe_unused]] const ssize_t written = ::write(pipe[1], text.data(), text.size());
      // As a program ends, with destructors: none of them may touch the parent's session or memory.
      contexts_.clear();
      tensors_.clear();
      ::_exit(0);
    }
    ::close(pipe[1]);
    std::string text;
    char bytes[512];
    ssize_t count = 0;
    while ((count = ::read(pipe[0], bytes, sizeof(bytes))) > 0) {
      text.append(bytes, static_cast<std::size_t>(count));
    }
    ::close(pipe[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "error child died " + std::to_string(status);
    return "ok " + text;
  }

  // A child without exec that lives on: "ok PID".
  static std::string ForkHold() {
    const pid_t child = ::fork();
    if (child == 0) {
      while (true) ::pause();
    }
    return "ok " + std::to_string(child);
  }

  // threads COUNT REPEAT: so many threads, on all contexts, each with tensors and ops of its own.
  std::string Threads(const Words& words) {
    std::vector<const Context*> contexts;
    for (const auto& [name, context] : contexts_) contexts.push_back(&context);
    const std::size_t count = std::stoull(words.at(1));
    const int repeat = std::stoi(words.at(2));
    std::vector<absl::Status> results(count);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round < repeat && results[i].ok(); ++round) {
          results[i] = FillAndAdd(*contexts[i % contexts.size()], static_cast<float>(i + 1));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& result : results) {
      if (!result.ok()) return Error(result);
    }
    return "ok";
  }

  static absl::Status FillAndAdd(const Context& gpu, float value) {
    constexpr std::size_t kCount = 64 * 1024;
    const std::vector<float> values(kCount, value);
    LGPU_ASSIGN_OR_RETURN(const Tensor a, gpu.Constant<float>(lgpu::Shape{static_cast<std::int64_t>(kCount)},
                                                              std::span<const float>(values)));
    LGPU_ASSIGN_OR_RETURN(const Tensor sum, lgpu::AddN({a, a, a}));
    LGPU_ASSIGN_OR_RETURN(const std::vector<float> added, sum.ToVector<float>());
    for (const float got : added) {
      if (got != 3 * value) return absl::InternalError("wrong values");
    }
    return absl::OkStatus();
  }

  // Another program in the same process; it is this one again.
  // resize CONTEXT GPU LIMIT
  std::string Resize(const Words& words) {
    lgpu::ResizeOptions options;
    options.memory_limit = Bytes(std::stoull(words.at(3)));
    return Answer(contexts_.at(words.at(1)).ResizeDevice("/GPU:" + words.at(2), options));
  }

  // rlimit nofile|nproc|as MORE: limits this process to its present use and MORE; "all": to its hard limit.
  static std::string Limit(const Words& words) {
    const bool files = words.at(1) == "nofile";
    const bool threads = words.at(1) == "nproc";
    const auto which = files ? RLIMIT_NOFILE : threads ? RLIMIT_NPROC : RLIMIT_AS;
    rlimit limit = {};
    (void)::getrlimit(which, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (words.at(2) != "all") {
      std::uint64_t now = 0;
      if (files) {
        // A gap below the highest one is room too, also one that a thread uses for a moment: to look for a
        // daemon.
        now = limit.rlim_max;
        for (int look = 0; look < 20; ++look) {
          const int next = ::dup(STDIN_FILENO);
          now = std::min(now, static_cast<std::uint64_t>(next));
          (void)::close(next);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      } else if (threads) {
        now = static_cast<std::uint64_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                                       std::filesystem::directory_iterator()));
      } else {
        std::ifstream("/proc/self/statm") >> now;
        now *= static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
      }
      limit.rlim_cur = now + std::stoull(words[2]);
    }
    return ::setrlimit(which, &limit) == 0 ? "ok" : "error setrlimit";
  }

  static std::string Exec() {
    ::execl("/proc/self/exe", "e2e_client", nullptr);
    return "error exec";
  }

  std::map<std::string, Context> contexts_;
  struct OwnBlock {
    lgpu::LogicalMemory memory;
    lgpu::Block block;
  };
  std::optional<OwnBlock> block_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace

int main() {
  Client client;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    if (words.empty()) continue;
    if (words[0] == "exit") return words.size() > 1 ? std::atoi(words[1].c_str()) : 0;
    std::cout << client.Do(words) << std::endl;
  }
  return 0;
}
