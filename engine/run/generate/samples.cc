#include "engine/run/generate/samples.h"

#include <algorithm>

#include "engine/run/generate/generator.h"

namespace sluice {

namespace {

bool goes_on(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

std::string first_characters(const std::string& text, size_t most) {
  size_t end = std::min(most, text.size());
  while (end > 0 && end < text.size() && goes_on(text[end])) --end;
  return text.substr(0, end);
}

std::string last_characters(const std::string& text, size_t most) {
  size_t begin = text.size() - std::min(most, text.size());
  while (begin > 0 && begin < text.size() && goes_on(text[begin])) ++begin;
  return text.substr(begin);
}

std::optional<std::vector<SampledText>> write_samples(Session& session, const BodyIds& bodies,
                                                      const SamplePrompts& prompts,
                                                      const std::atomic<bool>& stop) {
  Generator generator(session, bodies, prompts.sampling, prompts.ends);
  const auto at_once = static_cast<size_t>(generator.sequences());
  std::vector<SampledText> texts;
  for (size_t first = 0; first < prompts.tokens.size(); first += at_once) {
    std::vector<Prompt> some;
    for (size_t i = first; i < std::min(prompts.tokens.size(), first + at_once); ++i)
      some.push_back({prompts.tokens[i], i});
    const std::vector<Answer> answers = generator.answer(
        some, prompts.tokens_max, false, [](size_t, uint32_t) { return true; }, stop);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].ending == Ending::stopped) return std::nullopt;
      if (session.ranks().is_first())
        texts.push_back({prompts.text_of(some[i].tokens), prompts.text_of(answers[i].tokens)});
    }
  }
  return texts;
}

}  // namespace sluice
