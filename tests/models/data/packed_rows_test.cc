// Prepared sets, and the rows that are made of their samples.
#include "models/data/packed_rows.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "engine/graph/op.h"
#include "tests/support/format_test_support.h"

namespace sluice {
namespace {

struct MadeSample {
  std::vector<uint32_t> ids;
  std::vector<bool> trained;
  bool is_text = false, goes_on = false;
};

// Sample n has ids n * 1000, n * 1000 + 1, ..., so that every token says where it is from.
MadeSample sample_of(uint32_t number, uint32_t tokens, uint32_t first_trained) {
  MadeSample s;
  for (uint32_t i = 0; i < tokens; ++i) {
    s.ids.push_back(number * 1000 + i);
    s.trained.push_back(i >= first_trained);
  }
  return s;
}

class PackedRowsTest : public FormatTest {
 protected:
  static constexpr int64_t kVocabulary = 1 << 20;

  // A set with the samples divided into parts of `per_part`.
  PreparedSet make_set(const std::vector<MadeSample>& samples, size_t per_part = 1000) const {
    const std::string place = path("set");
    std::filesystem::remove_all(place);
    std::filesystem::create_directories(place);
    uint64_t parts = 0;
    for (size_t first = 0; first < samples.size(); first += per_part) {
      PartWriter part(place + "/" + part_name(parts++));
      for (size_t i = first; i < std::min(first + per_part, samples.size()); ++i)
        part.add(samples[i].ids, samples[i].trained, samples[i].is_text, samples[i].goes_on);
      part.commit({}, "");
    }
    complete_set(place, parts, "{}");
    return PreparedSet::open(place, kVocabulary);
  }
  static std::vector<MadeSample> random_samples(uint32_t count, uint32_t longest, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<MadeSample> samples;
    for (uint32_t n = 0; n < count; ++n) {
      const uint32_t tokens = 2 + random() % (longest - 1);
      samples.push_back(sample_of(n, tokens, 1 + random() % (tokens - 1)));
    }
    return samples;
  }
};

struct Row {
  std::vector<int32_t> inputs, labels, documents;
  bool operator==(const Row&) const = default;
};

Row read_row(RowSource& rows, int64_t sequence, uint64_t number) {
  const auto n = static_cast<size_t>(sequence);
  Row row{std::vector<int32_t>(n), std::vector<int32_t>(n), std::vector<int32_t>(n)};
  rows.read(number, 1, row.inputs.data(), row.labels.data(), row.documents.data());
  return row;
}

// Checks that a row consists of whole samples one after the other, with their labels. Returns their numbers.
std::vector<uint32_t> samples_in(const Row& row, const std::vector<MadeSample>& samples) {
  std::vector<uint32_t> found;
  const auto length = static_cast<int32_t>(row.inputs.size());
  for (int32_t t = 0; t < length;) {
    EXPECT_EQ(row.documents[t], t) << "a document begins where the one before ended";
    if (row.labels[t] == kPaddingLabel) {
      EXPECT_EQ(row.inputs[t], 0);
      ++t;
      continue;
    }
    const auto number = static_cast<uint32_t>(row.inputs[t]) / 1000;
    const MadeSample& s = samples.at(number);
    for (size_t i = 0; i + 1 < s.ids.size(); ++i) {
      const auto at = static_cast<size_t>(t) + i;
      EXPECT_EQ(row.documents.at(at), t);
      EXPECT_EQ(row.inputs.at(at), static_cast<int32_t>(s.ids[i]));
      EXPECT_EQ(row.labels.at(at), s.trained[i + 1] ? static_cast<int32_t>(s.ids[i + 1]) : kIgnoreLabel);
    }
    t += static_cast<int32_t>(s.ids.size()) - 1;
    found.push_back(number);
  }
  return found;
}

TEST_F(PackedRowsTest, SetGivesBackWhatWasWritten) {
  const std::vector<MadeSample> samples = random_samples(100, 40, 1);
  const PreparedSet set = make_set(samples, 7);
  ASSERT_EQ(set.samples(), 100u);
  std::vector<PreparedSample> read(100);
  set.read_samples(0, read);
  uint64_t begin = 0;
  for (size_t n = 0; n < samples.size(); ++n) {
    const MadeSample& s = samples[n];
    EXPECT_EQ(read[n].begin, begin);
    EXPECT_EQ(read[n].tokens, s.ids.size());
    EXPECT_EQ(read[n].trained, std::count(s.trained.begin(), s.trained.end(), true));
    std::vector<int32_t> ids(s.ids.size());
    std::vector<uint8_t> marks(s.ids.size());
    set.read_tokens(begin, ids.size(), ids.data(), marks.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(ids[i], static_cast<int32_t>(s.ids[i]));
      EXPECT_EQ(marks[i], s.trained[i]);
    }
    begin += s.ids.size();
  }
  // One read goes across several parts.
  std::vector<int32_t> ids(begin);
  std::vector<uint8_t> marks(begin);
  set.read_tokens(0, begin, ids.data(), marks.data());
  EXPECT_EQ(ids.front(), 0);
  EXPECT_EQ(ids.back(), static_cast<int32_t>(samples.back().ids.back()));
}

TEST_F(PackedRowsTest, DamagedSetsAreRefused) {
  make_set(random_samples(20, 10, 1), 10);
  const std::string part = path("set/part-000001");
  const std::string whole = read_file("set/part-000001");
  EXPECT_TRUE(part_counts(part).has_value());
  for (size_t byte = 0; byte < whole.size(); ++byte) {  // ids, marks, samples, counts and checksum
    std::string changed = whole;
    changed[byte] ^= static_cast<char>(1 << byte % 8);
    write_file("set/part-000001", changed);
    EXPECT_FALSE(part_counts(part).has_value()) << byte;
  }
  write_file("set/part-000001", whole.substr(0, whole.size() - 8));
  expect_error(ExitCode::malformed_file, {"part-000001", "damaged"},
               [&] { PreparedSet::open(path("set"), kVocabulary); });
  std::filesystem::remove(part);
  expect_error(ExitCode::malformed_file, {"part-000001", "is missing"},
               [&] { PreparedSet::open(path("set"), kVocabulary); });
  write_file("set/part-000001", whole);
  const PreparedSet few = PreparedSet::open(path("set"), 2000);  // of samples 0 and 1
  std::vector<int32_t> ids(few.counts().tokens);
  std::vector<uint8_t> marks(few.counts().tokens);
  expect_error(ExitCode::malformed_file, {"token id 2000", "vocabulary has 2000 ids"},
               [&] { few.read_tokens(0, ids.size(), ids.data(), marks.data()); });
  write_file("set/set.json", "{\"format\": \"sluice-prepared-9\", \"parts\": 2}");
  expect_error(ExitCode::malformed_file, {"another version"},
               [&] { PreparedSet::open(path("set"), kVocabulary); });
  std::filesystem::remove(path("set/set.json"));
  expect_error(ExitCode::usage, {"no complete prepared set"},
               [&] { PreparedSet::open(path("set"), kVocabulary); });
}

TEST_F(PackedRowsTest, EveryEpochHasEverySampleOnce) {
  const std::vector<MadeSample> samples = random_samples(500, 40, 2);
  const PreparedSet set = make_set(samples);
  for (const bool shuffled : {true, false})
    for (const bool packed : {true, false}) {
      const PackingChoice choice{.sequence = 48, .packed = packed, .shuffled = shuffled, .seed = 7};
      PackedRows rows(set, SampleChoice::all(set.samples()), choice);
      std::vector<std::vector<uint32_t>> orders;
      uint64_t first = 0;
      for (uint64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<uint32_t> order;
        const uint64_t end = rows.rows_of_epochs(epoch + 1);
        for (uint64_t r = first; r < end; ++r) {
          const std::vector<uint32_t> found = samples_in(read_row(rows, 48, r), samples);
          if (!packed) {
            EXPECT_EQ(found.size(), 1u);
          }
          order.insert(order.end(), found.begin(), found.end());
        }
        first = end;
        EXPECT_EQ(std::set(order.begin(), order.end()).size(), samples.size());
        EXPECT_EQ(order.size(), samples.size());
        orders.push_back(order);
      }
      EXPECT_EQ(orders[0] != orders[1], shuffled);
    }
}

TEST_F(PackedRowsTest, RowsDependOnTheirNumberAlone) {
  const std::vector<MadeSample> samples = random_samples(300, 30, 3);
  const PreparedSet set = make_set(samples);
  const PackingChoice choice{.sequence = 64, .seed = 11};
  PackedRows in_order(set, SampleChoice::all(set.samples()), choice);
  const uint64_t all = in_order.rows_of_epochs(3);
  std::vector<Row> rows;
  for (uint64_t r = 0; r < all; ++r) rows.push_back(read_row(in_order, 64, r));
  PackedRows anyhow(set, SampleChoice::all(set.samples()), choice);
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const uint64_t r = random() % all;
    ASSERT_EQ(read_row(anyhow, 64, r), rows[r]) << r;
  }
  EXPECT_EQ(read_row(anyhow, 64, all - 1), rows[all - 1]);
  anyhow.facts();
  EXPECT_EQ(read_row(anyhow, 64, all - 1), rows[all - 1]);
  PackedRows other_seed(set, SampleChoice::all(set.samples()), {.sequence = 64, .seed = 12});
  EXPECT_NE(read_row(other_seed, 64, 0), rows[0]);
}

// Compares the number of rows with that of a plain best-fit decreasing.
TEST_F(PackedRowsTest, RowsAreAsFewAsBestFitMakes) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<MadeSample> samples = random_samples(200, 65, seed);
    const PreparedSet set = make_set(samples);
    std::vector<size_t> lengths, room;
    for (const MadeSample& s : samples) lengths.push_back(s.ids.size() - 1);
    std::sort(lengths.rbegin(), lengths.rend());
    for (const size_t length : lengths) {
      size_t* best = nullptr;
      for (size_t& r : room)
        if (r >= length && (!best || r < *best)) best = &r;
      if (!best) best = &room.emplace_back(64);
      *best -= length;
    }
    PackedRows rows(set, SampleChoice::all(set.samples()), {.sequence = 64, .seed = seed});
    EXPECT_EQ(rows.facts().rows, room.size());
    uint64_t tokens = 0;
    for (const size_t length : lengths) tokens += length;
    EXPECT_EQ(rows.facts().tokens, tokens);
    EXPECT_EQ(rows.facts().trained, set.counts().trained);
  }
}

TEST_F(PackedRowsTest, LongSamplesAreCutDividedOrRefused) {
  // Samples 1 and 3 have 100 tokens, trained from token 90 and from token 5 on. Sample 2 fits.
  const std::vector<MadeSample> samples = {sample_of(1, 100, 90), sample_of(2, 10, 1), sample_of(3, 100, 5)};
  const PreparedSet set = make_set(samples);
  const auto rows_of = [&](LongSamples how) {
    return PackedRows(set, SampleChoice::all(3),
                      {.sequence = 40, .packed = false, .long_samples = how, .shuffled = false});
  };
  PackedRows cut = rows_of(LongSamples::cut);
  EXPECT_EQ(cut.facts().rows, 2u);  // nothing is trained of the first forty tokens of sample 1
  EXPECT_EQ(cut.facts().cut, 2u);
  EXPECT_EQ(cut.facts().left_out, 1u);
  EXPECT_EQ(cut.facts().trained, 9u + 36u);
  EXPECT_EQ(cut.facts().lost, 10u + 95u - 36u);
  EXPECT_EQ(cut.facts().lost_ends, 2u);
  const Row last = read_row(cut, 40, 1);
  EXPECT_EQ(last.inputs.back(), 3039);
  EXPECT_EQ(last.labels.back(), 3040);

  PackedRows divided = rows_of(LongSamples::divided);
  EXPECT_EQ(divided.facts().rows, 1u + 1u + 3u);  // of sample 1 only the last piece
  EXPECT_EQ(divided.facts().trained, 10u + 9u + 95u);
  const Row rest = read_row(divided, 40, 0);
  EXPECT_EQ(rest.inputs[0], 1080);
  EXPECT_EQ(rest.labels[18], 1099);
  EXPECT_EQ(rest.labels[19], kPaddingLabel);
  EXPECT_EQ(read_row(divided, 40, 3).inputs[0], 3040);

  expect_error(ExitCode::usage, {"Sample 1", "100 tokens", "--seq 40"},
               [&] { rows_of(LongSamples::refused); });
}

TEST_F(PackedRowsTest, NothingTrainedIsRefused) {
  const PreparedSet set = make_set({sample_of(1, 100, 90)});
  expect_error(ExitCode::malformed_file, {"none has trained tokens within 40"},
               [&] { PackedRows(set, SampleChoice::all(1), {.sequence = 40}); });
}

TEST_F(PackedRowsTest, ValidationEndsWithItsLastRow) {
  const std::vector<MadeSample> samples = random_samples(50, 30, 4);
  const PreparedSet set = make_set(samples);
  PackedRows rows(set, SampleChoice::all(50), {.sequence = 64, .shuffled = false, .once = true});
  const uint64_t count = rows.facts().rows;
  EXPECT_FALSE(samples_in(read_row(rows, 64, count - 1), samples).empty());
  const Row beyond = read_row(rows, 64, count);
  EXPECT_TRUE(std::all_of(beyond.labels.begin(), beyond.labels.end(),
                          [](int32_t label) { return label == kPaddingLabel; }));
}

// The data form many groups, of which one at a time is in memory.
TEST_F(PackedRowsTest, ManyGroups) {
  const std::vector<MadeSample> samples = random_samples(40'000, 6, 6);
  const std::string place = path("many");
  std::filesystem::create_directories(place);
  {
    PartWriter part(place + "/" + part_name(0));
    for (size_t i = 0; i < samples.size(); ++i)
      part.add(std::vector<uint32_t>(samples[i].ids.size(), static_cast<uint32_t>(i)), samples[i].trained);
    part.commit({}, "");
  }
  complete_set(place, 1, "{}");
  const PreparedSet set = PreparedSet::open(place, kVocabulary);
  PackedRows rows(set, SampleChoice::all(samples.size()), {.sequence = 16, .seed = 3});
  std::map<int32_t, size_t> positions;
  for (uint64_t r = 0; r < rows.facts().rows; ++r) {
    const Row row = read_row(rows, 16, r);
    for (size_t t = 0; t < 16; ++t)
      if (row.documents[t] != static_cast<int32_t>(t) || row.labels[t] != kPaddingLabel || row.inputs[t] != 0)
        ++positions[row.inputs[t]];
  }
  // Samples of two tokens, whose one label is always trained, have one position each.
  for (size_t i = 1; i < samples.size(); ++i)
    ASSERT_EQ(positions[static_cast<int32_t>(i)], samples[i].ids.size() - 1) << i;
}

// Counts for each sample how many of its tokens are held out. Checks that every token is held out or among
// the others, once.
std::vector<uint64_t> held_tokens(const PreparedSet& set, const std::shared_ptr<const HeldOut>& held) {
  std::vector<PreparedSample> samples(set.samples());
  set.read_samples(0, samples);
  std::vector<uint64_t> held_of(samples.size()), tokens_of(samples.size());
  for (const bool is_held : {true, false}) {
    const SampleChoice choice = is_held ? SampleChoice::held_out(held) : SampleChoice::others(held);
    std::vector<uint64_t> end(samples.size());
    uint64_t before = 0;
    for (uint64_t i = 0; i < choice.size(); ++i) {
      const SampleStretch s = choice.at(i);
      EXPECT_GE(s.sample, before) << "in the order of the set";
      EXPECT_GE(s.first, end[s.sample]);
      before = s.sample;
      const uint32_t tokens = s.tokens == 0 ? samples[s.sample].tokens : s.tokens;
      end[s.sample] = s.first + tokens;
      EXPECT_LE(end[s.sample], samples[s.sample].tokens);
      tokens_of[s.sample] += tokens;
      if (is_held) held_of[s.sample] += tokens;
    }
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(tokens_of[i], samples[i].tokens) << i;
    sum += held_of[i];
  }
  EXPECT_EQ(sum, held->tokens());
  return held_of;
}

TEST_F(PackedRowsTest, RecordsAreHeldOutWholeByTheirTokens) {
  std::vector<MadeSample> samples = random_samples(1000, 200, 5);
  for (size_t i = 0; i < samples.size(); ++i) samples[i].goes_on = i % 5 == 1 || i % 5 == 2;
  const PreparedSet set = make_set(samples, 100);
  for (const double percent : {0.7, 5.0, 50.0, 95.0}) {
    const auto held = std::make_shared<const HeldOut>(set, percent);
    const std::vector<uint64_t> tokens = held_tokens(set, held);
    const double wanted = percent / 100 * static_cast<double>(set.counts().tokens);
    EXPECT_NEAR(static_cast<double>(held->tokens()), wanted, 300) << "half of the longest record";
    uint64_t records = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      EXPECT_TRUE(tokens[i] == 0 || tokens[i] == samples[i].ids.size());
      if (samples[i].goes_on)
        EXPECT_EQ(tokens[i] > 0, tokens[i - 1] > 0) << i;
      else
        records += tokens[i] > 0;
    }
    EXPECT_EQ(held->records(), records);
    // Each tenth of the set has about a tenth of the tokens that are held out.
    for (size_t tenth = 0; percent >= 5 && tenth < 10; ++tenth) {
      uint64_t of_tenth = 0;
      for (size_t i = 0; i < 100; ++i) of_tenth += tokens[100 * tenth + i];
      EXPECT_NEAR(static_cast<double>(of_tenth), wanted / 10, 800) << tenth;
    }
  }
}

TEST_F(PackedRowsTest, AFewRecordsHoldOutOne) {
  const auto held_of = [&](const std::vector<uint32_t>& lengths, double percent) {
    std::vector<MadeSample> samples;
    for (const uint32_t tokens : lengths)
      samples.push_back(sample_of(static_cast<uint32_t>(samples.size()), tokens, 1));
    const PreparedSet set = make_set(samples);
    return held_tokens(set, std::make_shared<const HeldOut>(set, percent));
  };
  EXPECT_EQ(held_of({50, 20, 30}, 5), (std::vector<uint64_t>{0, 20, 0}));
  EXPECT_EQ(held_of({50, 20, 30}, 60), (std::vector<uint64_t>{50, 0, 0}));
  expect_error(ExitCode::usage, {"--val-split leaves none of 1 record to validate on"},
               [&] { held_of({50}, 5); });
  expect_error(ExitCode::usage, {"--val-split leaves none of 2 records to train on"}, [&] {
    held_of({20, 20}, 99);
  });
}

TEST_F(PackedRowsTest, OfALongTextAPartIsHeldOut) {
  const auto text_of = [](uint32_t tokens) {
    MadeSample text{std::vector<uint32_t>(tokens), std::vector<bool>(tokens, true), true};
    for (uint32_t i = 0; i < tokens; ++i) text.ids[i] = i;
    return text;
  };
  const PreparedSet one = make_set({text_of(100'000)});
  const auto held = std::make_shared<const HeldOut>(one, 5);
  EXPECT_EQ(held_tokens(one, held), std::vector<uint64_t>{5000});
  EXPECT_EQ(SampleChoice::held_out(held).at(0), (SampleStretch{0, 95'000, 5000}));
  EXPECT_EQ(SampleChoice::others(held).at(0), (SampleStretch{0, 0, 95'000}));
  const PackingChoice choice{.sequence = 100, .long_samples = LongSamples::divided, .shuffled = false};
  PackedRows rows(one, SampleChoice::held_out(held), choice);
  EXPECT_EQ(rows.facts().trained, 4999u);
  EXPECT_EQ(rows.facts().rows, 50u);
  const Row row = read_row(rows, 100, 0);
  EXPECT_EQ(row.inputs[0], 95'000);
  EXPECT_EQ(row.labels[99], 95'100);
  PackedRows others(one, SampleChoice::others(held), choice);
  EXPECT_EQ(others.facts().trained, 94'999u);
  // Two stretches of 30,000 tokens are held out. The conversation and the short text are not divided.
  std::vector<MadeSample> texts(10, text_of(60'000));
  texts.push_back(sample_of(1, 900, 400));
  texts.push_back(text_of(800));
  const PreparedSet some = make_set(texts, 4);
  EXPECT_EQ(held_tokens(some, std::make_shared<const HeldOut>(some, 10)),
            (std::vector<uint64_t>{0, 0, 0, 0, 30'000, 0, 0, 0, 0, 30'000, 0, 0}));
  // A stretch goes on behind its place if the text there begins too late to hold all of it.
  const PreparedSet late = make_set({text_of(40'000), text_of(40'000), text_of(34'000)});
  EXPECT_EQ(held_tokens(late, std::make_shared<const HeldOut>(late, 30)),
            (std::vector<uint64_t>{0, 17'100, 17'100}));
}

}  // namespace
}  // namespace sluice
