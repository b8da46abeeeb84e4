// A run that reads only the experts that a batch needs gives the same bits, and reads no other experts.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/verify/verify.h"
#include "tests/support/continuations.h"
#include "tests/support/forwarded_device.h"

namespace sluice {
namespace {

const std::string kFolder = "tests/fixtures/";
const std::vector<std::vector<uint32_t>> kPickedPrompts = {
    {5}, {7, 200, 31, 4, 9, 11, 250}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {40, 3}, {17, 290, 8}};

struct Spoken {
  std::vector<std::vector<uint32_t>> tokens;
  std::vector<float> logits;  // of all places of the last decode
};

Spoken spoken(Speaking& speaking, const Speech& speech) {
  Spoken all{tokens_of(speaking.answers(kPickedPrompts)), {}};
  for (int64_t place = 0; place < speech.sizes.sequences; ++place)
    for (const float logit : speaking.logits("decode", place)) all.logits.push_back(logit);
  return all;
}

size_t places_of(const Plan& plan) {
  return static_cast<size_t>(
      std::ranges::count_if(plan.program.buffers, [](const Buffer& b) { return b.pick.has_value(); }));
}

void expect_verified(const Plan& plan) {
  for (const Violation& v : verify(plan.program, 5)) ADD_FAILURE() << describe(plan.program, v);
  EXPECT_EQ(to_text(program_from_text(to_text(plan.program))), to_text(plan.program));
}

// Expects the tokens, and the bits of the logits, that a run which reads all experts gives.
void expect_bits(const Speech& speech, size_t places) {
  Speech all = speech;
  all.picks_experts = false;
  Speaking reads_all(all), picks(speech);
  EXPECT_EQ(places_of(reads_all.plan()), 0u);
  EXPECT_EQ(places_of(picks.plan()), places);
  expect_verified(picks.plan());
  const Spoken wanted = spoken(reads_all, all), found = spoken(picks, speech);
  EXPECT_EQ(found.tokens, wanted.tokens);
  EXPECT_EQ(found.logits, wanted.logits);
}

TEST(PickedExperts, GiveTheBitsOfAllExperts) {
  struct Case {
    const char* fixture;
    int64_t sequences;
    size_t places;  // of all layers; 0: all experts are read
  };
  // qwen3_moe has 6 experts in two of three layers, and a token uses 3 of them. The others: olmoe 8 and 2,
  // qwen2_moe 8 and 4 in one of two layers, mixtral 4 and 2, gpt_oss 6 and 3.
  for (const Case& c : {Case{"qwen3_moe", 1, 6}, Case{"qwen3_moe", 2, 0}, Case{"olmoe", 3, 12},
                        Case{"qwen2_moe", 1, 4}, Case{"mixtral", 1, 4}, Case{"gpt_oss", 1, 6}})
    for (const bool upper : {false, true})
      for (const Placement placement : {Placement::lowest, Placement::highest}) {
        SCOPED_TRACE(::testing::Message()
                     << c.fixture << " " << c.sequences << upper << static_cast<int>(placement));
        Speech speech{.model = kFolder + c.fixture, .sizes = {c.sequences, 40, 5}, .tokens_max = 9};
        speech.placement = placement;
        speech.arenas = {upper ? std::optional(kRoomy) : std::nullopt, kRoomy, std::nullopt};
        expect_bits(speech, c.places);
      }
}

// An expert has about a MiB, the size from which buffers have homes on a drive.
const std::string kLarge =
    "qwen3_moe:layers=2,width=128,heads=2,kv_heads=2,head_size=64,experts=6,top=2,expert_ffn=680,vocab=300,"
    "context=64";

Speech on_drive(const DriveDirectory& directory) {
  Speech speech{.model = kLarge, .sizes = {1, 40, 5}, .placement = Placement::lowest};
  speech.arenas = {std::nullopt, kRoomy, kRoomy};
  speech.nvme_directory = directory.path();
  speech.tokens_max = 9;
  return speech;
}

TEST(PickedExperts, GiveTheBitsOfAllExpertsFromADriveAndInTheLeastMemory) {
  const DriveDirectory directory;
  for (const bool upper : {false, true})
    for (const bool least : {false, true})
      for (const int64_t sequences : {1, 2}) {
        SCOPED_TRACE(::testing::Message() << upper << least << sequences);
        Speech speech = on_drive(directory);
        speech.sizes.sequences = sequences;
        speech.arenas = {upper ? std::optional(kRoomy) : std::nullopt, kRoomy, kRoomy};
        if (least) {
          Speech none = speech;
          none.arenas = {upper ? std::optional<uint64_t>(0) : std::nullopt, 0, kRoomy};
          const std::vector<uint64_t> bytes = refusal_of(none).least_together;
          // `bytes` is the least of a plan without picks. A plan with picks needs less than a MiB more, for
          // the end of a part.
          constexpr uint64_t kMore = uint64_t{1} << 20;
          speech.arenas = {upper ? std::optional(bytes[0] + kMore) : std::nullopt,
                           bytes[upper ? 1 : 0] + kMore, kRoomy};
        }
        Speech all = speech;
        all.arenas = {std::nullopt, kRoomy, std::nullopt};
        all.picks_experts = false;
        Speaking reads_all(all), picks(speech);
        expect_verified(picks.plan());
        EXPECT_EQ(places_of(picks.plan()), static_cast<size_t>(4 * sequences));
        const Spoken wanted = spoken(reads_all, all), found = spoken(picks, speech);
        EXPECT_EQ(found.tokens, wanted.tokens);
        EXPECT_EQ(found.logits, wanted.logits);
      }
}

TEST(PickedExperts, EveryExecutorGivesTheSameBits) {
  const DriveDirectory directory;
  for (const ExecutorKind executor : {ExecutorKind::serial, ExecutorKind::shuffled}) {
    Speech speech = on_drive(directory);
    speech.arenas = {kRoomy, kRoomy, kRoomy};
    speech.executor = executor;
    expect_bits(speech, 4);
  }
}

// Bytes that the transfers of a lane have moved.
uint64_t bytes_read(Speaking& speaking, const char* lane) {
  const Program& program = speaking.plan().program;
  for (LaneId l = 0; l < program.machine.lanes.size(); ++l)
    if (program.machine.lanes[l].name == lane) return speaking.session().runner().moved_bytes(l);
  ADD_FAILURE() << lane;
  return 0;
}

// Bytes of experts' weights that a body brings from the drive each time it runs, if each place has a part.
uint64_t bytes_of_experts(const Plan& plan, BodyId body) {
  uint64_t bytes = 0;
  for (const Instruction& in : plan.program.bodies[body].instructions) {
    const Buffer& b = plan.program.buffers[in.operands[0].buffer];
    if (in.task == kNoTask && b.name.find(".experts.") != std::string::npos &&
        plan.program.machine.tiers[in.places[0].tier].file)
      bytes += operand_bytes(b, in.operands[0]);
  }
  return bytes;
}

TEST(PickedExperts, ADecodeReadsNoOthers) {
  const DriveDirectory directory;
  Speech speech = on_drive(directory);
  uint64_t read[2][2];  // with picks or not; of answers of one token, and of nine
  uint64_t of_experts[2];
  for (const bool picks : {false, true}) {
    speech.picks_experts = picks;
    for (const bool more : {false, true}) {
      speech.tokens_max = more ? 9 : 1;
      Speaking speaking(speech);
      speaking.answers({kPickedPrompts[1]});
      read[picks][more] = bytes_read(speaking, "nvme_read");
      of_experts[picks] = bytes_of_experts(speaking.plan(), speaking.plan().lowering.bodies().readings[0]);
    }
  }
  constexpr uint64_t kDecodes = 8, kExperts = 6, kChosen = 2;
  EXPECT_GT(of_experts[false], 0u);
  // The ratio is not exact, since parts are aligned.
  EXPECT_NEAR(static_cast<double>(of_experts[true]) / static_cast<double>(of_experts[false]),
              double{kChosen} / kExperts, 0.01);
  const uint64_t all = read[false][true] - read[false][false], some = read[true][true] - read[true][false];
  EXPECT_EQ(all - some, kDecodes * (of_experts[false] - of_experts[true]));
}

// Tokens that choose the same experts need fewer experts than there are places.
TEST(PickedExperts, PlacesWithoutAnExpertMoveNothing) {
  const DriveDirectory directory;
  Speech speech = on_drive(directory);
  speech.sizes.sequences = 2;
  uint64_t read[2];
  for (const bool more : {false, true}) {
    speech.tokens_max = more ? 9 : 1;
    Speaking speaking(speech);
    speaking.answers({kPickedPrompts[1], kPickedPrompts[1]});
    read[more] = bytes_read(speaking, "nvme_read");
    if (!more) continue;
    const uint64_t at_most = bytes_of_experts(speaking.plan(), speaking.plan().lowering.bodies().readings[0]);
    EXPECT_EQ(places_of(speaking.plan()), 8u);
    uint64_t others = 0;
    for (const Instruction& in :
         speaking.plan().program.bodies[speaking.plan().lowering.bodies().readings[0]].instructions)
      if (in.task == kNoTask && speaking.plan().program.machine.tiers[in.places[0].tier].file)
        others += operand_bytes(speaking.plan().program.buffers[in.operands[0].buffer], in.operands[0]);
    others -= at_most;
    EXPECT_EQ(read[true] - read[false], 8 * (others + at_most / 2));
  }
}

// A device whose routers write `begins`, which no router would write.
class BadRouter final : public ForwardedDevice {
 public:
  BadRouter(std::unique_ptr<Device> device, std::vector<int32_t> begins)
      : ForwardedDevice(std::move(device)), begins_(std::move(begins)) {}
  void forward(const OpCall& call) override {
    ForwardedDevice::forward(call);
    if (call.shapes->kind == OpKind::route)
      std::ranges::copy(begins_, static_cast<int32_t*>(call.outputs[1].data));
  }

 private:
  const std::vector<int32_t> begins_;
};

TEST(PickedExperts, AnIndexThatTellsNothingEndsTheRun) {
  const std::vector<int32_t> kBad[] = {{1, 1, 2, 2, 2, 2, 2},   // does not begin at 0
                                       {0, 2, 1, 2, 2, 2, 2},   // descends
                                       {0, 1, 2, 3, 3, 3, 3}};  // three experts, of two places
  for (const std::vector<int32_t>& begins : kBad) {
    Speech speech{.model = kLarge, .sizes = {1, 40, 5}, .tokens_max = 3, .placement = Placement::lowest};
    speech.around = [&](std::unique_ptr<Device> device) {
      return std::make_unique<BadRouter>(std::move(device), begins);
    };
    try {
      Speaking(speech).answers({kPickedPrompts[0]});
      ADD_FAILURE() << begins[0] << begins[1] << begins[2];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bug);
      EXPECT_NE(std::string(error.what()).find("does not tell at most 2 of 6 parts."), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace sluice
