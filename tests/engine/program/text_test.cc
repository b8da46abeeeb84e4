// The text form: exact round trips, a golden text, errors with line numbers, and no crash on damaged text.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <stdexcept>

#include "engine/program/program.h"
#include "engine/program/text_words.h"
#include "tests/support/random_program.h"
#include "tests/support/same_program.h"

namespace sluice {
namespace {

// Every form of the grammar: names that need escapes, an empty name and two equal names, runs of pieces,
// rings, copies with two versions, raw instructions, waits on the body before.
constexpr const char* kGolden = R"(sluice program 1
tier device capacity 18446744073709551615 alignment 256
tier host%20memory capacity 4096 alignment 64
tier nvme capacity 8192 alignment 4096 file
lane compute
lane h2d
lane %
lane nvme_read overlapping
link host%20memory device h2d alignment 64
link nvme host%20memory nvme_read alignment 4096
unit forward compute device
unit save nvme_read host%20memory
ring train
ring validation%0A
buffer w weights permanent home nvme+4096 pieces 64x3,128,64x2
buffer same activations home device pieces 64
buffer same activations home device+64 pieces 64
buffer t scalars permanent home host%20memory+0 ring validation%0A stride 128 pieces 64,32
buffer %C3%A4%2F%25 workspace home device pieces 1
arena 1024 2048 8192
body first clean -> pending advance 1 0 peak 1024 0 8192 after %232
body step pending -> pending advance 0 1 peak 1 2 3 after first step
body %232 empty -> clean
tasks first
0 forward 3/1 flops 1e+20 bytes 4096 read w@0 write #1@0 read t~2[1]@0 as loss write %C3%A4%2F%25@7
1 backward 4294967295/0 recompute products flops 0.1 bytes 0 add w[0]@0 read w[1:3]@1
instructions first
0 nvme_read:1 copy w[2:4]@0 nvme+4224 -> host%20memory+0
1 compute:1 run 0 at device+0 device+512 host%20memory+64 device+768 after nvme_read:1
2 h2d:1 copy t@3>4 host%20memory+0 -> device+0 after compute:1 after %232/h2d:9
3 %:1 raw 1 add w[0]@0 as accumulator at device+64
4 nvme_read:2 raw -
tasks step
instructions step
0 compute:1 raw 77 write #2@1 after first/compute:1 after first/h2d:2 after step/nvme_read:4
tasks %232
instructions %232
)";

TEST(Text, AllStatesOfBodiesHaveWordsOfTheirOwn) {
  std::set<std::string> words;
  for (int s = 0; s < kBodyStates; ++s) {
    EXPECT_EQ(BodyState::at(s).index(), s);
    words.insert(state_word(BodyState::at(s)));
  }
  EXPECT_EQ(words.size(), size_t{kBodyStates});
}

TEST(Text, GoldenText) {
  const Program p = program_from_text(kGolden);
  EXPECT_EQ(to_text(p), kGolden);
  EXPECT_EQ(p.machine.tiers[1].name, "host memory");
  EXPECT_EQ(p.machine.tiers[0].capacity, UINT64_MAX);
  EXPECT_EQ(p.machine.lanes[2].name, "");
  EXPECT_TRUE(p.machine.lanes[3].overlapping);
  EXPECT_EQ(p.rings[1].name, "validation\n");
  EXPECT_EQ(p.buffers[0].cuts, (std::vector<uint64_t>{0, 64, 128, 192, 320, 384, 448}));
  EXPECT_EQ(p.buffers[4].name, "ä/%");
  EXPECT_EQ(p.bodies[2].name, "#2");
  EXPECT_EQ(p.bodies[0].predecessors, std::vector<BodyId>{2});
  EXPECT_EQ(p.bodies[0].tasks[0].flops, 1e20);
  EXPECT_EQ(p.bodies[0].tasks[0].operands[2].back, 2);
  EXPECT_EQ(p.bodies[0].tasks[1].subject, 4294967295u);
  EXPECT_EQ(p.bodies[0].instructions[2].operands[0].version, 3u);
  EXPECT_EQ(p.bodies[0].instructions[2].operands[1].version, 4u);
  EXPECT_EQ(p.bodies[0].instructions[2].waits_before[0][0].count, 9u);
  EXPECT_EQ(p.bodies[1].instructions[0].waits_before[0].size(), 2u);
  EXPECT_EQ(p.bodies[1].instructions[0].waits_before[1][0].count, 4u);
  EXPECT_EQ(p.bodies[1].instructions[0].operands[0].buffer, 2u);
}

TEST(Text, RoundTripOfRandomPrograms) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Program p = testing::random_program(seed);
    const std::string text = to_text(p);
    const Program q = program_from_text(text);
    EXPECT_TRUE(testing::same(p, q)) << "seed " << seed;
    EXPECT_EQ(to_text(q), text) << "seed " << seed;
  }
}

TEST(Text, DoublesReadBackExactly) {
  Program p = testing::random_program(3);
  std::mt19937_64 random(1);
  std::vector<double> values = {0.0, 5e-324, 1.7976931348623157e308, 0.1, 1.0 / 3, 123456789012345678.0};
  for (int i = 0; i < 100; ++i) values.push_back(std::ldexp(static_cast<double>(random()), i - 80));
  for (const double v : values) {
    p.bodies[1].tasks[0].flops = v;
    EXPECT_EQ(program_from_text(to_text(p)).bodies[1].tasks[0].flops, v);
  }
}

void expect_error(const std::string& text, const std::string& message) {
  try {
    program_from_text(text);
    FAIL() << "accepted; expected: " << message;
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find(message), std::string::npos)
        << e.what() << "\nexpected: " << message;
  }
}

TEST(Text, ErrorsNameTheLine) {
  const std::string head =
      "sluice program 1\ntier a capacity 64 alignment 1\nlane l\nbuffer b state home a pieces 8x4\n"
      "body s clean -> clean after s\n";
  EXPECT_NO_THROW(program_from_text(head));
  expect_error("", "line 0: the text is empty");
  expect_error("sluice program 2\n", "line 1: '2' stands where '1' is expected");
  expect_error("\n\nhello\n", "line 3: 'hello' stands where 'sluice' is expected");
  expect_error(head + "tier\n", "line 6: the line ends too early");
  expect_error(head + "tier x capacity -1 alignment 1\n", "line 6: '-1' is not a number");
  expect_error(head + "tier x capacity 18446744073709551616 alignment 1\n", "is not a number that fits here");
  expect_error(head + "tier %4 capacity 1 alignment 1\n", "'%4' has a % without two hexadecimal digits");
  expect_error(head + "lane x y\n", "line 6: 'y' stands after the end of the row");
  expect_error(head + "link a b l\n", "line 6: there is no tier 'b'");
  expect_error(head + "unit fly l a\n", "'fly' is not a kind of task");
  expect_error(head + "lane l\nunit norm l a\n", "line 7: there are several lane rows 'l'; use #index");
  expect_error(head + "unit norm #1 a\n", "there is no lane '#1'");
  expect_error(head + "buffer c food home a pieces 1\n", "'food' is not a class of buffers");
  expect_error(head + "buffer c state home a pieces 8x0\n", "there are no pieces, or too many");
  expect_error(head + "buffer c state home a pieces 8x99999999999\n", "there are no pieces, or too many");
  expect_error(head + "body t clean -> dirty\n", "'dirty' is not a state of bodies");
  expect_error(head + "body t clean -> clean after u\n", "there is no body 'u'");
  expect_error(head + "what\n", "'what' is not a kind of row");
  expect_error(head + "tasks s\nlane x\n", "line 7: 'lane' stands among tasks and instructions");
  expect_error(head + "tasks s\n1 norm 0/0 flops 0 bytes 0\n", "task 0 is expected");
  expect_error(head + "tasks s\n0 norm 0/0 flops inf bytes 0\n", "flops are not finite");
  expect_error(head + "tasks s\n0 norm 0/0 flops 0 bytes 0 read b[4]@0\n",
               "there is no piece 4, the buffer has 4");
  expect_error(head + "tasks s\n0 norm 0/0 flops 0 bytes 0 read b[1:5]@0\n", "are not in a buffer of 4");
  expect_error(head + "tasks s\n0 norm 0/0 flops 0 bytes 0 read b[1:1]@0\n", "are not in a buffer of 4");
  expect_error(head + "tasks s\n0 norm 0/0 flops 0 bytes 0 read b\n", "'b' is not buffer[pieces]@version");
  expect_error(head + "instructions s\n0 l:2 raw -\n", "this is number 1 of its lane");
  expect_error(head + "instructions s\n0 l:1 run 0\n", "there is no task 0");
  expect_error(head + "instructions s\n0 l:1 fly\n", "'fly' is not copy, run or raw");
  expect_error(head + "instructions s\n0 l:1 copy b@0 a+0 a+8\n", "'a+8' stands where '->' is expected");
  expect_error(head + "instructions s\n0 l:1 raw - after t/l:1\n", "there is no body 't'");
}

// Damaged text either throws std::invalid_argument or parses. If it parses, its printed form parses to the
// same program.
void expect_no_crash(const std::string& text) {
  try {
    const Program p = program_from_text(text);
    EXPECT_TRUE(testing::same(p, program_from_text(to_text(p)))) << text;
  } catch (const std::invalid_argument&) {
  }
}

TEST(Text, SurvivesTruncation) {
  const std::string text = to_text(testing::random_program(5, {1, 1, 2, 20, 40}));
  for (size_t bytes = 0; bytes < text.size(); bytes += 1 + bytes % 3) expect_no_crash(text.substr(0, bytes));
}

TEST(Text, SurvivesRandomDamage) {
  const std::string text = to_text(testing::random_program(6, {1, 1, 2, 20, 40}));
  std::mt19937_64 random(2);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const std::string alphabet = " \n#%@:+-/~[],x>0123456789abcdefghijklmnopqrstuvwxyz\xff";
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (size_t fault = 0; fault <= below(4); ++fault) {
      const size_t at = below(damaged.size());
      switch (below(5)) {
        case 0:
          damaged[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          damaged.erase(at, 1 + below(20));
          break;
        case 2:
          damaged.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        case 3:
          damaged.insert(at, text.substr(below(text.size()), below(60)));
          break;
        default:
          damaged.replace(at, 1, std::to_string(random()));
          break;
      }
    }
    expect_no_crash(damaged);
  }
}

}  // namespace
}  // namespace sluice
