#include "bench/workloads/catalog.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/workloads/residual_network.h"
#include "bench/workloads/transformer.h"

namespace lgpu::bench {
namespace {

struct Maker {
  std::string_view name;
  std::string_view what;
  std::uint64_t seed;
  Trace (*make)(std::string name, std::string what, Scale scale, std::uint64_t seed);
};

template <typename T>
T AtScale(Scale scale, T full, T small) {
  return scale == Scale::kFull ? full : small;
}

TransformerTraining Training1B3(Scale scale, std::uint32_t steps, bool varying) {
  TransformerShape shape = TransformerShape::Of1B3();
  shape.layers = AtScale<std::uint64_t>(scale, shape.layers, 8);
  return {.shape = shape,
          .batch = 4,
          .sequence = 2048,
          .steps = AtScale<std::uint32_t>(scale, steps, varying ? 8 : 3),
          .varying_length = varying};
}

Trace MakeS3(std::string name, std::string what, Scale scale, std::uint64_t seed) {
  TransformerShape shape = TransformerShape::Of7B();
  shape.layers = AtScale<std::uint64_t>(scale, shape.layers, 8);
  return TrainTransformer(std::move(name), std::move(what),
                          {.shape = shape,
                           .batch = 2,
                           .sequence = 4096,
                           .steps = AtScale<std::uint32_t>(scale, 20, 8),
                           .shards = 4,
                           .recompute = true,
                           .varying_length = true},
                          seed);
}

Trace MakeS4(std::string name, std::string what, Scale scale, std::uint64_t seed) {
  TransformerShape shape = TransformerShape::Of13B();
  shape.layers = AtScale<std::uint64_t>(scale, shape.layers, 10);
  return TrainTransformer(std::move(name), std::move(what),
                          {.shape = shape,
                           .batch = 4,
                           .sequence = 4096,
                           .steps = AtScale<std::uint32_t>(scale, 20, 8),
                           .shards = 4,
                           .recompute = true,
                           .adapters = true,
                           .varying_length = true},
                          seed);
}

constexpr Maker kMakers[] = {
    {"A", "churn, 100k live, 256 B to 1 MiB", 1,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return Churn(std::move(name), std::move(what),
                    {.live = AtScale(scale, 100000u, 5000u),
                     .pairs = AtScale<std::size_t>(scale, 1000000, 20000),
                     .smallest = 256_B,
                     .largest = 1_MiB},
                    seed);
     }},
    {"B", "churn, 20k live, 256 B to 64 MiB", 2,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return Churn(std::move(name), std::move(what),
                    {.live = AtScale(scale, 20000u, 2000u),
                     .pairs = AtScale<std::size_t>(scale, 1000000, 20000),
                     .smallest = 256_B,
                     .largest = 64_MiB},
                    seed);
     }},
    {"C", "churn, 100k live, 256 B to 64 MiB", 3,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return Churn(std::move(name), std::move(what),
                    {.live = AtScale(scale, 100000u, 5000u),
                     .pairs = AtScale<std::size_t>(scale, 1000000, 20000),
                     .smallest = 256_B,
                     .largest = 64_MiB},
                    seed);
     }},
    {"D", "churn, 1k live, 512 B to 64 KiB", 4,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return Churn(std::move(name), std::move(what),
                    {.live = 1000,
                     .pairs = AtScale<std::size_t>(scale, 2000000, 20000),
                     .smallest = 512_B,
                     .largest = 64_KiB},
                    seed);
     }},
    {"E", "73 % allocate, 100k, 1 B to 4 MiB, 16000 MiB live at most", 5,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return MostlyAllocate(std::move(name), std::move(what),
                             {.allocations = AtScale<std::size_t>(scale, 100000, 10000),
                              .largest = 4_MiB,
                              .most_live = AtScale(scale, 16000_MiB, 2000_MiB)},
                             seed);
     }},
    {"F", "1.3B transformer, training, varying length, 200 steps", 6,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return TrainTransformer(std::move(name), std::move(what), Training1B3(scale, 200, true), seed);
     }},
    {"S1", "1.3B transformer, training, fixed length", 1,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return TrainTransformer(std::move(name), std::move(what), Training1B3(scale, 6, false), seed);
     }},
    {"S2", "1.3B transformer, training, varying length", 2,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return TrainTransformer(std::move(name), std::move(what), Training1B3(scale, 40, true), seed);
     }},
    {"S3", "7B transformer, recompute, 4 shards, varying length", 3, MakeS3},
    {"S4", "13B transformer, adapters, recompute, 4 shards, varying length", 4, MakeS4},
    {"S5", "residual network, training, batch 256", 5,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return TrainResidualNetwork(
           std::move(name), std::move(what),
           {.batch = AtScale<std::uint64_t>(scale, 256, 64), .steps = AtScale<std::uint32_t>(scale, 6, 3)},
           seed);
     }},
    {"S6", "residual network, training, batch 128 to 256", 6,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return TrainResidualNetwork(std::move(name), std::move(what),
                                   {.batch = AtScale<std::uint64_t>(scale, 256, 64),
                                    .steps = AtScale<std::uint32_t>(scale, 30, 6),
                                    .varying_batch = true},
                                   seed);
     }},
    {"S7", "8B transformer, eager inference, varying batch and length", 7,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return InferTransformer(std::move(name), std::move(what), AtScale(scale, 200u, 16u), seed);
     }},
    {"S8", "churn, 20k live, 256 B to 64 MiB", 8,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return Churn(std::move(name), std::move(what),
                    {.live = AtScale(scale, 20000u, 2000u),
                     .pairs = AtScale<std::size_t>(scale, 300000, 20000),
                     .smallest = 256_B,
                     .largest = 64_MiB},
                    seed);
     }},
    {"S9", "churn, 100k live, 256 B to 1 MiB", 9,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return Churn(std::move(name), std::move(what),
                    {.live = AtScale(scale, 100000u, 20000u),
                     .pairs = AtScale<std::size_t>(scale, 300000, 40000),
                     .smallest = 256_B,
                     .largest = 1_MiB},
                    seed);
     }},
    {"S10", "comb of 512 x 16 MiB, 8 rounds", 10,
     [](std::string name, std::string what, Scale, std::uint64_t) {
       return Comb(std::move(name), std::move(what), {.teeth = 512, .tooth = 16_MiB, .rounds = 8});
     }},
    {"S11", "slivers: 91 and 45.5 MiB in passing, 2 MiB kept, 100 cycles", 11,
     [](std::string name, std::string what, Scale, std::uint64_t) {
       return Slivers(std::move(name), std::move(what),
                      {.first = 91_MiB, .second = 45_MiB + 512_KiB, .kept = 2_MiB, .cycles = 100});
     }},
    {"S12", "cache blocks of 64 KiB, 96 requests at a time, 1000 survivors", 12,
     [](std::string name, std::string what, Scale scale, std::uint64_t seed) {
       return ScatteredBlocks(std::move(name), std::move(what),
                              {.requests = AtScale(scale, 2000u, 300u),
                               .at_once = 96,
                               .block = 64_KiB,
                               .keep_one_in = 8,
                               .survivors = 1000},
                              seed);
     }},
};

}  // namespace

const std::vector<TimeWorkload>& TimeWorkloads() {
  static const std::vector<TimeWorkload> kWorkloads = {{"A", 24_GiB}, {"B", 160_GiB}, {"C", 900_GiB},
                                                       {"D", 1_GiB},  {"E", 24_GiB},  {"F", 160_GiB}};
  return kWorkloads;
}

const std::vector<std::string_view>& SpaceWorkloads() {
  static const std::vector<std::string_view> kNames = {"S1", "S2", "S3", "S4",  "S5",  "S6",
                                                       "S7", "S8", "S9", "S10", "S11", "S12"};
  return kNames;
}

absl::StatusOr<Trace> MakeWorkload(std::string_view name, const WorkloadOptions& options) {
  std::vector<std::string> names;
  for (const Maker& maker : kMakers) {
    if (maker.name == name) {
      return maker.make(std::string(maker.name), std::string(maker.what), options.scale,
                        options.seed == 0 ? maker.seed : options.seed);
    }
    names.emplace_back(maker.name);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no workload ", std::string(name), "; there are ", absl::StrJoin(names, " ")));
}

const std::vector<RisingWorkload>& RisingWorkloads() {
  static const std::vector<RisingWorkload> kWorkloads = {
      {"L1", "16 GiB, 256 B to 64 MiB, 10 replaced per addition", {16_GiB, 256_B, 64_MiB, 10}},
      {"L2", "16 GiB, 64 KiB to 1 GiB, 20 replaced per addition", {16_GiB, 64_KiB, 1_GiB, 20}},
      {"L3", "1 GiB, 256 B to 1 MiB, 4 replaced per addition", {1_GiB, 256_B, 1_MiB, 4}},
  };
  return kWorkloads;
}

}  // namespace lgpu::bench
