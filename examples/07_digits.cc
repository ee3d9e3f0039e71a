// Handwritten digits, learned by two dense layers on several logical GPUs at once. With an even batch the
// weights are those that one device finds, but for rounding.
//
//   07_digits --devices 2 --memory 64MiB --plot digits.svg

#include <lgpu/lgpu.h>
#include <lgpu/mirrored_strategy.h>
#include <lgpu/training.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

using namespace lgpu;

// Where the images lie: a build from lgpu's tree says it.
#ifndef LGPU_EXAMPLE_DATA
#define LGPU_EXAMPLE_DATA "data"
#endif

namespace {

constexpr std::int64_t kPixels = 64;
constexpr std::int64_t kHidden = 128;
constexpr std::int64_t kClasses = 10;
constexpr std::size_t kTestImages = 360;

struct Flags {
  int devices = 2;
  std::string memory = "64MiB";
  std::string data = LGPU_EXAMPLE_DATA "/digits.csv";
  int epochs = 20;
  int batch = 64;
  std::string plot;
  std::string weights;
};

struct Images {
  std::vector<float> pixels;  // 0 to 1, kPixels of each
  std::vector<std::int32_t> labels;
  std::size_t count() const { return labels.size(); }
};

/// All images in an order that the seed says: training first, then kTestImages for the test.
absl::StatusOr<Images> ReadImages(const std::string& file) {
  std::ifstream in(file);
  if (!in) return absl::NotFoundError("cannot read " + file + "; name the file with --data");
  std::vector<std::vector<int>> rows;
  for (std::string line; std::getline(in, line);) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream words(line);
    rows.emplace_back();
    for (int value = 0; words >> value;) rows.back().push_back(value);
    if (rows.back().size() != kPixels + 1) {
      return absl::InvalidArgumentError(file + ", line " + std::to_string(rows.size()) +
                                        ": 64 pixels and a digit are needed");
    }
  }
  if (rows.size() <= kTestImages) return absl::InvalidArgumentError(file + " has too few images");
  std::mt19937 random(1);
  for (std::size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random() % i]);
  Images images;
  for (const std::vector<int>& row : rows) {
    for (std::size_t i = 0; i < kPixels; ++i) images.pixels.push_back(static_cast<float>(row[i]) / 16);
    images.labels.push_back(row.back());
  }
  return images;
}

struct Batch {
  Tensor pixels, labels;
};

/// The images of these numbers, on the CPU.
absl::StatusOr<Batch> MakeBatch(const Context& context, const Images& images,
                                std::span<const std::size_t> which) {
  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
  for (const std::size_t image : which) {
    const auto begin = images.pixels.begin() + static_cast<std::ptrdiff_t>(image * kPixels);
    pixels.insert(pixels.end(), begin, begin + kPixels);
    labels.push_back(images.labels[image]);
  }
  const auto rows = static_cast<std::int64_t>(which.size());
  const DeviceScope cpu(context, "/CPU:0");
  Batch batch;
  LGPU_ASSIGN_OR_RETURN(batch.pixels,
                        context.Constant<float>(Shape{rows, kPixels}, std::span<const float>(pixels)));
  LGPU_ASSIGN_OR_RETURN(batch.labels,
                        context.Constant<std::int32_t>(Shape{rows}, std::span<const std::int32_t>(labels)));
  return batch;
}

/// Two dense layers with Relu between.
struct Network {
  MirroredVariable kernel1, bias1, kernel2, bias2;
  std::vector<MirroredVariable*> variables() { return {&kernel1, &bias1, &kernel2, &bias2}; }
};

absl::StatusOr<Network> MakeNetwork(const Context& context, const MirroredStrategy& strategy) {
  LGPU_ASSIGN_OR_RETURN(const Tensor kernel1, GlorotUniform(context, Shape{kPixels, kHidden}, 1));
  LGPU_ASSIGN_OR_RETURN(const Tensor bias1, Zeros(context, Shape{kHidden}));
  LGPU_ASSIGN_OR_RETURN(const Tensor kernel2, GlorotUniform(context, Shape{kHidden, kClasses}, 2));
  LGPU_ASSIGN_OR_RETURN(const Tensor bias2, Zeros(context, Shape{kClasses}));
  Network network;
  LGPU_ASSIGN_OR_RETURN(network.kernel1, strategy.Variable(kernel1));
  LGPU_ASSIGN_OR_RETURN(network.bias1, strategy.Variable(bias1));
  LGPU_ASSIGN_OR_RETURN(network.kernel2, strategy.Variable(kernel2));
  LGPU_ASSIGN_OR_RETURN(network.bias2, strategy.Variable(bias2));
  return network;
}

/// One replica's step; its part of the loss.
absl::StatusOr<Tensor> Train(Replica& replica, Network& network, Sgd& sgd, const PerReplica& pixels,
                             const PerReplica& labels) {
  const Tensor& x = pixels[replica.id()];
  LGPU_ASSIGN_OR_RETURN(const Tensor kernel1, replica.Read(network.kernel1));
  LGPU_ASSIGN_OR_RETURN(const Tensor bias1, replica.Read(network.bias1));
  LGPU_ASSIGN_OR_RETURN(const Tensor kernel2, replica.Read(network.kernel2));
  LGPU_ASSIGN_OR_RETURN(const Tensor bias2, replica.Read(network.bias2));
  LGPU_ASSIGN_OR_RETURN(const Tensor before, Dense(x, kernel1, bias1));
  LGPU_ASSIGN_OR_RETURN(const Tensor hidden, Relu(before));
  LGPU_ASSIGN_OR_RETURN(const Tensor logits, Dense(hidden, kernel2, bias2));
  LGPU_ASSIGN_OR_RETURN(const Loss loss,
                        SparseCategoricalCrossEntropy(replica.context(), logits, labels[replica.id()],
                                                      replica.LossWeight(pixels)));
  LGPU_ASSIGN_OR_RETURN(const DenseGradients second, DenseGrad(hidden, kernel2, loss.gradient));
  LGPU_ASSIGN_OR_RETURN(const Tensor of_before, ReluGrad(second.x, before));
  LGPU_ASSIGN_OR_RETURN(const DenseGradients first, DenseGrad(x, kernel1, of_before, {.of_x = false}));
  LGPU_ASSIGN_OR_RETURN(const std::vector<Tensor> sums,
                        replica.AllReduce(ReduceOp::kSum, std::vector<Tensor>{first.kernel, first.bias,
                                                                              second.kernel, second.bias}));
  LGPU_RETURN_IF_ERROR(sgd.Apply(replica, network.variables(), sums));
  return loss.value;
}

/// Of the test images, on the first replica's device.
absl::StatusOr<double> Accuracy(const MirroredStrategy& strategy, const Context& context,
                                const Images& images, const Network& network) {
  std::vector<std::size_t> which(kTestImages);
  std::iota(which.begin(), which.end(), images.count() - kTestImages);
  LGPU_ASSIGN_OR_RETURN(const Batch test, MakeBatch(context, images, which));
  const DeviceScope scope(context, strategy.devices().front());
  LGPU_ASSIGN_OR_RETURN(const Tensor before,
                        Dense(test.pixels, network.kernel1.value(0), network.bias1.value(0)));
  LGPU_ASSIGN_OR_RETURN(const Tensor hidden, Relu(before));
  LGPU_ASSIGN_OR_RETURN(const Tensor logits, Dense(hidden, network.kernel2.value(0), network.bias2.value(0)));
  LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, logits.ToVector<float>());
  int right = 0;
  for (std::size_t i = 0; i < kTestImages; ++i) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i) * kClasses;
    const auto guess = std::max_element(begin, begin + kClasses) - begin;
    if (guess == images.labels[which[i]]) ++right;
  }
  return static_cast<double>(right) / kTestImages;
}

struct Epoch {
  double loss = 0;
  double accuracy = 0;
  double steps_per_second = 0;
};

/// Loss and accuracy by epoch, as SVG.
absl::Status WritePlot(const std::string& file, const std::vector<Epoch>& epochs) {
  constexpr double kWidth = 640, kHeight = 320, kEdge = 40;
  double most = 0;
  for (const Epoch& epoch : epochs) most = std::max(most, epoch.loss);
  const auto curve = [&](auto value, const char* color) {
    std::ostringstream points;
    for (std::size_t i = 0; i < epochs.size(); ++i) {
      const double across =
          epochs.size() < 2 ? 0 : static_cast<double>(i) / static_cast<double>(epochs.size() - 1);
      points << (i == 0 ? "" : " ") << kEdge + across * (kWidth - 2 * kEdge) << ","
             << kHeight - kEdge - value(epochs[i]) * (kHeight - 2 * kEdge);
    }
    return "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + std::string(color) + "\" points=\"" +
           points.str() + "\"/>\n";
  };
  std::ofstream out(file);
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"320\" font-family=\"sans-serif\" "
         "font-size=\"12\">\n<rect width=\"640\" height=\"320\" fill=\"white\"/>\n"
      << "<path d=\"M40 40V280H600\" fill=\"none\" stroke=\"#888\"/>\n"
      << curve([&](const Epoch& epoch) { return most == 0 ? 0 : epoch.loss / most; }, "#0072b2")
      << curve([](const Epoch& epoch) { return epoch.accuracy; }, "#d55e00")
      << "<text x=\"44\" y=\"30\" fill=\"#0072b2\">loss, up to " << most << "</text>\n"
      << "<text x=\"240\" y=\"30\" fill=\"#d55e00\">test accuracy, up to 1</text>\n"
      << "<text x=\"300\" y=\"305\" fill=\"#444\">" << epochs.size() << " epochs</text>\n</svg>\n";
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError("cannot write " + file);
}

absl::Status WriteWeights(const std::string& file, Network& network) {
  std::ofstream out(file);
  out.precision(9);
  for (const MirroredVariable* variable : network.variables()) {
    LGPU_ASSIGN_OR_RETURN(const std::vector<float> values, variable->value(0).ToVector<float>());
    for (const float value : values) out << value << "\n";
  }
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError("cannot write " + file);
}

absl::Status PrintProgress(const Context& context, const MirroredStrategy& strategy, int number, int of,
                           const Epoch& epoch) {
  std::printf("%sepoch %d/%d  loss %.4f  accuracy %.3f  %.0f steps/s", isatty(STDOUT_FILENO) != 0 ? "\r" : "",
              number, of, epoch.loss, epoch.accuracy, epoch.steps_per_second);
  for (const std::string& device : strategy.devices()) {
    LGPU_ASSIGN_OR_RETURN(const MemoryInfo memory, context.GetMemoryInfo(device));
    std::printf("  %s %s", device.substr(device.rfind('/') + 8).c_str(), FormatBytes(memory.current).c_str());
  }
  std::printf("%s", isatty(STDOUT_FILENO) != 0 && number < of ? "" : "\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::StatusOr<Epoch> TrainEpoch(const Context& context, const MirroredStrategy& strategy,
                                 const Images& images, std::vector<std::size_t>& order, std::mt19937& random,
                                 const Flags& flags, Network& network, Sgd& sgd) {
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  const auto start = std::chrono::steady_clock::now();
  const auto batch_size = static_cast<std::size_t>(flags.batch);
  double loss = 0;
  std::size_t steps = 0;
  for (std::size_t first = 0; first + batch_size <= order.size(); first += batch_size, ++steps) {
    LGPU_ASSIGN_OR_RETURN(const Batch batch,
                          MakeBatch(context, images, std::span(order).subspan(first, batch_size)));
    LGPU_ASSIGN_OR_RETURN(const PerReplica pixels, strategy.Split(batch.pixels));
    LGPU_ASSIGN_OR_RETURN(const PerReplica labels, strategy.Split(batch.labels));
    std::vector<Tensor> losses(static_cast<std::size_t>(strategy.replicas()));
    LGPU_RETURN_IF_ERROR(strategy.Run([&](Replica& replica) -> absl::Status {
      LGPU_ASSIGN_OR_RETURN(losses[static_cast<std::size_t>(replica.id())],
                            Train(replica, network, sgd, pixels, labels));
      return absl::OkStatus();
    }));
    for (const Tensor& part : losses) {
      LGPU_ASSIGN_OR_RETURN(const std::vector<float> value, part.ToVector<float>());
      loss += static_cast<double>(value.at(0));
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  Epoch epoch{.loss = loss / static_cast<double>(steps),
              .steps_per_second = static_cast<double>(steps) / took.count()};
  LGPU_ASSIGN_OR_RETURN(epoch.accuracy, Accuracy(strategy, context, images, network));
  return epoch;
}

absl::Status Run(const Flags& flags) {
  LGPU_ASSIGN_OR_RETURN(const Images images, ReadImages(flags.data));
  LGPU_ASSIGN_OR_RETURN(const Bytes memory, ParseBytes(flags.memory));
  const LogicalDeviceOptions device{.memory_limit = memory};
  LGPU_ASSIGN_OR_RETURN(const Context context,
                        Context::Create({.logical_devices = std::vector<LogicalDeviceOptions>(
                                             static_cast<std::size_t>(flags.devices), device)}));
  LGPU_ASSIGN_OR_RETURN(const MirroredStrategy strategy, MirroredStrategy::Create(context));
  LGPU_ASSIGN_OR_RETURN(Network network, MakeNetwork(context, strategy));
  Sgd sgd(strategy, {.learning_rate = 0.05, .momentum = 0.9});
  std::vector<std::size_t> order(images.count() - kTestImages);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(2);
  std::vector<Epoch> epochs;
  for (int number = 1; number <= flags.epochs; ++number) {
    LGPU_ASSIGN_OR_RETURN(const Epoch epoch,
                          TrainEpoch(context, strategy, images, order, random, flags, network, sgd));
    epochs.push_back(epoch);
    LGPU_RETURN_IF_ERROR(PrintProgress(context, strategy, number, flags.epochs, epoch));
  }
  if (!flags.plot.empty()) LGPU_RETURN_IF_ERROR(WritePlot(flags.plot, epochs));
  if (!flags.weights.empty()) LGPU_RETURN_IF_ERROR(WriteWeights(flags.weights, network));
  std::printf("test accuracy %.3f on %d logical GPU%s\n", epochs.back().accuracy, strategy.replicas(),
              strategy.replicas() == 1 ? "" : "s");
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Learns handwritten digits on several logical GPUs");
  app.add_option("--devices", flags.devices, "Logical GPUs")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--memory", flags.memory, "Limit of each")->capture_default_str();
  app.add_option("--epochs", flags.epochs, "Passes over the images")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--batch", flags.batch, "Images in a step, on all devices together")
      ->check(CLI::Range(1, 1437))
      ->capture_default_str();
  app.add_option("--data", flags.data, "The images, as CSV")->capture_default_str();
  app.add_option("--plot", flags.plot, "Write loss and accuracy to this SVG file");
  app.add_option("--weights", flags.weights, "Write what was learned to this file, one number a line");
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = Run(flags); !status.ok()) {
    std::cerr << "07_digits: " << status.message() << "\n";
    return 1;
  }
  return 0;
}
