#include "cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

namespace lgpu::cli {
namespace {

using ::testing::HasSubstr;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    for (const char* uuid : {"GPU-aa", "GPU-bb"}) {
      v1::CardStats& card = *cards_.add_devices();
      card.set_uuid(uuid);
      card.set_index(static_cast<std::uint32_t>(cards_.devices_size() - 1));
      card.set_pci_bus_id("0000:01:00.0");
      card.set_served(true);
    }
  }
  Examination Examine(const std::map<std::string, std::string>& variables) {
    Examination examination;
    ExamineVariables(
        [&](const char* name) {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        {.cards = &cards_, .lease = lease_ ? &*lease_ : nullptr}, examination);
    return examination;
  }
  static const Check* Find(const Examination& examination, const std::string& id) {
    for (const Check& check : examination.checks) {
      if (check.id == id) return &check;
    }
    return nullptr;
  }
  static VariableInEffect Variable(const Examination& examination, const std::string& name) {
    for (const VariableInEffect& variable : examination.variables) {
      if (variable.name == name) return variable;
    }
    return {};
  }

  v1::ListPhysicalDevicesResponse cards_;
  std::optional<v1::Lease> lease_;
};

TEST_F(DoctorTest, DefaultsAreNamedAsSuchAndAreNoWarnings) {
  cards_.mutable_devices(0)->set_simulated(true);
  const Examination examination = Examine({});
  EXPECT_EQ(examination.Count(Check::Level::kWarn), 0);
  EXPECT_EQ(Variable(examination, "LGPU_SOFT_PLACEMENT").value, "1");
  EXPECT_EQ(Variable(examination, "LGPU_SOFT_PLACEMENT").origin, "default");
}

TEST_F(DoctorTest, AWordThatDoesNotCountIsAWarningAndTheDefaultIsInEffect) {
  for (const char* word : {"True", "1", "TRUE", ""}) {
    const Examination examination = Examine({{"TF_FORCE_GPU_ALLOW_GROWTH", word}});
    const Check* check = Find(examination, "TF_FORCE_GPU_ALLOW_GROWTH");
    ASSERT_NE(check, nullptr) << word;
    EXPECT_EQ(check->level, Check::Level::kWarn);
    EXPECT_THAT(check->text, HasSubstr("only true, false count"));
    EXPECT_THAT(Variable(examination, "TF_FORCE_GPU_ALLOW_GROWTH").origin, HasSubstr("is ignored"));
  }
  const Examination fine = Examine({{"TF_FORCE_GPU_ALLOW_GROWTH", "true"}});
  EXPECT_EQ(Find(fine, "TF_FORCE_GPU_ALLOW_GROWTH"), nullptr);
  EXPECT_EQ(Variable(fine, "TF_FORCE_GPU_ALLOW_GROWTH").origin, "environment");
}

TEST_F(DoctorTest, VisibleDevicesAreResolvedToGpus) {
  const Examination good = Examine({{"CUDA_VISIBLE_DEVICES", "1"}});
  EXPECT_EQ(Find(good, "CUDA_VISIBLE_DEVICES")->level, Check::Level::kOk);
  EXPECT_THAT(Find(good, "CUDA_VISIBLE_DEVICES")->text, HasSubstr("\"1\" -> GPU 1 (0000:01:00.0)"));
  for (const char* bad : {"7", "", "1,1", "GPU-zz"}) {
    const Examination examination = Examine({{"CUDA_VISIBLE_DEVICES", bad}});
    EXPECT_EQ(Find(examination, "CUDA_VISIBLE_DEVICES")->level, Check::Level::kWarn) << bad;
  }
  cards_.mutable_devices(1)->set_served(false);
  EXPECT_EQ(Find(Examine({{"CUDA_VISIBLE_DEVICES", "1"}}), "CUDA_VISIBLE_DEVICES")->level,
            Check::Level::kWarn);
}

TEST_F(DoctorTest, InsideALeaseAnIndexCountsTheLeasesGpus) {
  lease_.emplace();
  lease_->set_name("train");
  lease_->add_devices()->set_card_uuid("GPU-bb");
  lease_->add_devices()->set_card_uuid("GPU-bb");
  const Examination first = Examine({{"CUDA_VISIBLE_DEVICES", "0"}});
  EXPECT_EQ(Find(first, "CUDA_VISIBLE_DEVICES")->level, Check::Level::kOk);
  EXPECT_THAT(Find(first, "CUDA_VISIBLE_DEVICES")->text,
              HasSubstr("\"0\" -> GPU 1 (0000:01:00.0); inside lease train"));
  const Examination none = Examine({{"CUDA_VISIBLE_DEVICES", "1"}});
  EXPECT_EQ(Find(none, "CUDA_VISIBLE_DEVICES")->level, Check::Level::kWarn);
  EXPECT_THAT(Find(none, "CUDA_VISIBLE_DEVICES")->text, HasSubstr("no GPU"));
  EXPECT_EQ(Find(none, "CUDA_DEVICE_ORDER"), nullptr);
}

TEST_F(DoctorTest, FastestFirstIsAWarningWhereItMatters) {
  EXPECT_NE(Find(Examine({}), "CUDA_DEVICE_ORDER"), nullptr);
  EXPECT_EQ(Find(Examine({{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}), "CUDA_DEVICE_ORDER"), nullptr);
  cards_.mutable_devices(0)->set_simulated(true);
  EXPECT_EQ(Find(Examine({}), "CUDA_DEVICE_ORDER"), nullptr);
}

TEST_F(DoctorTest, LongTextsGoOnUnderTheirBeginning) {
  Examination examination;
  examination.checks = {{"self-test", Check::Level::kOk, "one two three four"},
                        {"gpu", Check::Level::kWarn, "five", {"six seven eight"}}};
  CommonOptions options;
  options.out.width = 30;
  EXPECT_THAT(FormatExamination(examination, options), HasSubstr("ok    self-test  one two three\n"
                                                                 "                 four\n"
                                                                 "warn  gpu        five\n"
                                                                 "                 six seven\n"
                                                                 "                 eight\n"));
}

TEST(DoctorProcessorTest, UnusedAvx512IsNamedWithTheVariable) {
  const std::string with =
      "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl\nbogomips\t: 1\n";
  const std::string without = "processor\t: 0\nflags\t\t: fpu avx2 avx512f\nbogomips\t: 1\n";
  const std::vector<std::string> advice = ProcessorAdvice("Haswell", with);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_THAT(advice[0], HasSubstr("Haswell"));
  EXPECT_THAT(advice[1], HasSubstr("OPENBLAS_CORETYPE=SkylakeX"));
  EXPECT_TRUE(ProcessorAdvice("Haswell", without).empty());
  EXPECT_TRUE(ProcessorAdvice("Haswell", "").empty());
  EXPECT_TRUE(ProcessorAdvice("SkylakeX", with).empty());
  EXPECT_TRUE(ProcessorAdvice("", with).empty()) << "no OpenBLAS";
}

}  // namespace
}  // namespace lgpu::cli
