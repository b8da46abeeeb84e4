#include "engine/run/generate/generator.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/simd/convert.h"

namespace sluice {

namespace {

enum ReadingIndex : size_t { kDecode, kPrefill };

}  // namespace

void check_prompt(const std::vector<uint32_t>& tokens, int64_t context, int64_t vocabulary) {
  if (tokens.empty())
    throw Error(ExitCode::usage, "The prompt is empty: it has no tokens.", "Give a text to go on with.");
  if (tokens.size() >= static_cast<size_t>(context))
    throw Error(ExitCode::usage,
                fmt::format("The prompt has {} tokens, and prompt and answer have room for {}.",
                            tokens.size(), context),
                fmt::format("Shorten it, or give --max-context {} or more, if the model has such a context.",
                            tokens.size() + 1));
  const uint32_t largest = *std::ranges::max_element(tokens);
  if (largest >= static_cast<uint64_t>(vocabulary))
    throw Error(ExitCode::usage,
                fmt::format("The prompt has token {}, and the model has {} tokens.", largest, vocabulary),
                "Give the --tokenizer that the model was trained with.");
}

// A prompt and its answer.
struct Generator::Sequence {
  std::vector<uint32_t> tokens;  // of the prompt, then of the answer
  uint64_t number = 0;
  size_t prompt = 0;  // tokens of the prompt
  size_t tokens_max = 0, context = 0;
  std::vector<uint32_t>* cached = nullptr;  // the tokens at the start of `tokens` that are cached
  Ending ending = Ending::none;
  std::function<bool(uint32_t)> said;

  bool reads() const { return cached->size() < prompt; }
  bool goes_on() const { return ending == Ending::none; }
};

// The next slots of a reading's inputs. At first, all rows are idle.
class Generator::Inputs {
 public:
  Inputs(Session& session, size_t reading)
      : session_(session),
        reading_(session.plan().model.readings[reading]),
        tokens_(slot("tokens")),
        begins_(slot("documents")),
        picked_(reading_.tokens > 1 ? slot("picked") : nullptr) {
    for (int64_t row = 0; row < reading_.sequences * reading_.tokens; ++row) {
      tokens_[row] = 0;
      begins_[row] = static_cast<int32_t>(row % reading_.tokens) + 1;
    }
    for (int64_t s = 0; picked_ && s < reading_.sequences; ++s)
      picked_[s] = static_cast<int32_t>(s * reading_.tokens);
  }

  // Puts the next tokens of a sequence that are not cached yet. Returns how many.
  size_t put(size_t place, const Sequence& sequence) {
    const size_t cached = sequence.cached->size();
    const size_t count = std::min(static_cast<size_t>(reading_.tokens), sequence.tokens.size() - cached);
    const size_t first = place * static_cast<size_t>(reading_.tokens);
    for (size_t i = 0; i < count; ++i) {
      tokens_[first + i] = static_cast<int32_t>(sequence.tokens[cached + i]);
      begins_[first + i] = -static_cast<int32_t>(cached);
    }
    if (picked_ && count > 0) picked_[place] = static_cast<int32_t>(first + count - 1);
    return count;
  }

 private:
  int32_t* slot(const char* name) const {
    const Plan& plan = session_.plan();
    const BufferId buffer = input_buffer(plan.model, plan.lowering, reading_.name + "." + name);
    const uint64_t position = session_.next_position(plan.lowering.reading_ring);
    return reinterpret_cast<int32_t*>(session_.runner().ring_slot(buffer, position));
  }

  Session& session_;
  const Reading& reading_;
  int32_t *tokens_, *begins_, *picked_;
};

Generator::Generator(Session& session, const BodyIds& bodies, const Sampling& sampling,
                     std::vector<uint32_t> ends)
    : session_(session),
      bodies_(bodies.readings),
      sampling_(sampling),
      ends_(std::move(ends)),
      cached_(static_cast<size_t>(sequences())),
      logits_(static_cast<size_t>(session.plan().model.vocabulary)) {
  CHECK(session.plan().model.readings.size() == 2, "a model whose readings are decode and prefill");
}

bool Generator::stops(const std::atomic<bool>& stop) const { return session_.ranks().sum<int>(stop) > 0; }

void Generator::run_reading(size_t reading) {
  position_ = session_.next_position(ring());
  session_.executor().wait(session_.issue(bodies_[reading]));
  session_.check();
}

// Returns the sequence's next token. The first rank draws it for all ranks, from the logits of the reading
// that ran last: on another device, the logits of other ranks may have other bits.
uint32_t Generator::first_draws(const Sequence& sequence, size_t reading, size_t place) {
  constexpr int64_t kNoToken = -1;
  const Ranks& ranks = session_.ranks();
  int64_t token = 0;
  std::exception_ptr failure;
  if (ranks.is_first()) try {
      token = drawn_token(sampling_, row_of(reading, place), sequence.number, sequence.tokens.size(),
                          sequence.tokens);
    } catch (const Error&) {
      failure = std::current_exception();
      token = kNoToken;
    }
  token = ranks.sum(token);
  if (failure) std::rethrow_exception(failure);
  if (token == kNoToken)
    throw Error(ExitCode::numerics, "The first rank cannot draw a token.", "Its own error says why.");
  return static_cast<uint32_t>(token);
}

std::span<const float> Generator::row_of(size_t reading, size_t place) {
  const Plan& plan = session_.plan();
  const BufferId buffer =
      output_buffer(plan.model, plan.lowering, plan.model.readings[reading].name + ".logits");
  const std::byte* const slot = session_.runner().ring_slot(buffer, position_);
  const uint64_t row_bytes = logits_.size() * dtype_bytes(plan.model.precision);
  widen(plan.model.precision, slot + place * row_bytes, logits_.data(), logits_.size());
  return logits_;
}

void Generator::draw(Sequence& sequence, size_t reading, size_t place) {
  const uint32_t token = first_draws(sequence, reading, place);
  ++tokens_drawn_;
  if (std::ranges::find(ends_, token) != ends_.end()) {
    sequence.ending = Ending::token;
    return;
  }
  sequence.tokens.push_back(token);
  if (!sequence.said(token))
    sequence.ending = Ending::text;
  else if (sequence.tokens.size() - sequence.prompt == sequence.tokens_max)
    sequence.ending = Ending::length;
  else if (sequence.tokens.size() == sequence.context)
    sequence.ending = Ending::context;
}

void Generator::read_prompts(std::vector<Sequence>& all, const std::atomic<bool>& stop) {
  while (std::ranges::any_of(all, &Sequence::reads) && !stops(stop)) {
    Inputs inputs(session_, kPrefill);
    std::vector<size_t> counts;
    for (size_t place = 0; place < all.size(); ++place)
      counts.push_back(all[place].reads() ? inputs.put(place, all[place]) : 0);
    run_reading(kPrefill);
    for (size_t place = 0; place < all.size(); ++place) {
      Sequence& s = all[place];
      const auto first = s.tokens.begin() + static_cast<std::ptrdiff_t>(s.cached->size());
      s.cached->insert(s.cached->end(), first, first + static_cast<std::ptrdiff_t>(counts[place]));
      tokens_read_ += static_cast<int64_t>(counts[place]);
      if (counts[place] > 0 && !s.reads()) draw(s, kPrefill, place);
    }
  }
}

void Generator::decode(std::vector<Sequence>& all) {
  Inputs inputs(session_, kDecode);
  for (size_t place = 0; place < all.size(); ++place)
    if (all[place].goes_on()) inputs.put(place, all[place]);
  run_reading(kDecode);
  for (size_t place = 0; place < all.size(); ++place) {
    if (!all[place].goes_on()) continue;
    all[place].cached->push_back(all[place].tokens.back());
    draw(all[place], kDecode, place);
  }
}

std::vector<Answer> Generator::answer(std::span<const Prompt> prompts, int64_t tokens_max, bool continues,
                                      const std::function<bool(size_t, uint32_t)>& said,
                                      const std::atomic<bool>& stop) {
  CHECK(prompts.size() <= cached_.size(), "more prompts than the plan has sequences");
  for (const Prompt& prompt : prompts) check_prompt(prompt.tokens, context(), std::ssize(logits_));
  std::vector<Sequence> all;
  for (size_t place = 0; place < prompts.size(); ++place) {
    const Prompt& prompt = prompts[place];
    // The prompt's last token is read in any case, since its logits are wanted.
    std::vector<uint32_t>& cached = cached_[place];
    const auto common = std::ranges::mismatch(cached, prompt.tokens).in1 - cached.begin();
    const size_t kept = std::min(static_cast<size_t>(common), prompt.tokens.size() - 1);
    cached.resize(continues ? kept : 0);
    all.push_back({.tokens = prompt.tokens,
                   .number = prompt.number,
                   .prompt = prompt.tokens.size(),
                   .tokens_max = static_cast<size_t>(tokens_max),
                   .context = static_cast<size_t>(context()),
                   .cached = &cached,
                   .said = [&said, place](uint32_t token) { return said(place, token); }});
  }
  read_prompts(all, stop);
  while (std::ranges::any_of(all, &Sequence::goes_on) && !stops(stop)) decode(all);
  std::vector<Answer> answers;
  for (Sequence& s : all) {
    if (s.goes_on()) s.ending = Ending::stopped;
    s.tokens.erase(s.tokens.begin(), s.tokens.begin() + static_cast<std::ptrdiff_t>(s.prompt));
    answers.push_back({std::move(s.tokens), s.ending});
  }
  return answers;
}

}  // namespace sluice
