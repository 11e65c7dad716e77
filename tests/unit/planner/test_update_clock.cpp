// Times of updates whose state is on disk: the disk or the updates are the limit, and the next step begins meanwhile.
#include <vector>

#include "catch.h"
#include "ops/op_event.h"
#include "parallel/away_state.h"
#include "planner/drive_clock.h"
#include "planner/update_clock.h"

namespace test_update_clock {

using namespace gptrain;

namespace {

constexpr int32_t units = 8;

UpdateClock clock_of(double read, const DriveShares& shares = {}, int64_t landed = 3) {
  return {shares, std::vector<double>(units, read), landed};
}

// Plays the updates of a step whose norm is at `norm`.
void play(UpdateClock& clock, double norm, double disk, double update) {
  Event op;
  op.queue = Event::Queue::update;
  const std::vector<Event> events = {disk_event(false, 1), op, disk_event(true, 1)};
  Moment moment;
  moment.add(0, norm);
  clock.begin(moment);
  for (int32_t unit = 0; unit < units; ++unit) clock.play(unit, events, {disk, update, disk}, nullptr);
}

}  // namespace

TEST_CASE("updates wait for the disk, which reads ahead what the landing area holds") {
  UpdateClock clock = clock_of(2);  // reads and writes take turns
  play(clock, 0, 2, 1);
  CHECK(clock.over(0).time == 1);
  CHECK(clock.over(2).time == 3);
  CHECK(clock.over(3).time == 8);       // unit 0 is written from 1 to 3, then unit 3 read until 7, beside a write
  CHECK(clock.over(7).time == 8 + 16);  // each further unit takes a write and a read
  clock.begin_next_step(0);
  CHECK(clock.over(7).time == 24);
  play(clock, 100, 2, 1);
  CHECK(clock.over(0).time == 101);  // its state was read before the norm
  CHECK(clock.over(7).time == 124);
}

TEST_CASE("more units in memory let the drive work before the norm") {
  const auto last_update = [](int64_t landed) {
    UpdateClock clock = clock_of(2, {.read = 1, .write = 1}, landed);
    play(clock, 0, 2, 1);
    clock.begin_next_step(0);
    play(clock, 100, 2, 1);
    return clock.over(units - 1).time;
  };
  CHECK(last_update(3) == 100 + 3 + 5 * 2 + 1);  // units 0 to 2 were read, then five reads and an update
  CHECK(last_update(6) == 100 + 8);              // two reads are over before their updates
  CHECK(last_update(units) == 100 + units);      // only the updates are left
}

TEST_CASE("passes hide transfers of as many units as memory holds") {
  // Updates take no time, so that all units that were read are over at the norm.
  const auto waits = [](int64_t landed) {
    UpdateClock clock = clock_of(1, {.read = 1, .write = 1}, landed);
    double waited = 0;
    for (int step = 0; step < 4; ++step) {
      play(clock, 100, 1, 0);
      waited = clock.over(units - 1).time - 100;
      clock.begin_next_step(100);
    }
    return waited;
  };
  CHECK(waits(3) == 5 + 1);  // a write, then reads of units 3 to 7
  CHECK(waits(6) == 2 + 1);
  CHECK(waits(units) == 0);
}

TEST_CASE("gradients on disk are read after the norm, and state before it") {
  Event op;
  op.queue = Event::Queue::update;
  Event gradients = disk_event(false, 1);
  gradients.name = gradient_read_name;
  const std::vector<Event> events = {disk_event(false, 1), gradients, op, disk_event(true, 1)};
  UpdateClock clock = clock_of(8, {.read = 1, .write = 1});
  Moment norm;
  norm.add(0, 10);
  clock.begin(norm);
  clock.play(0, events, {8, 2, 1, 1}, nullptr);
  CHECK(clock.over(0).time == 10 + 2 + 1);
}

TEST_CASE("a drive that reads and writes at once halves the time") {
  UpdateClock clock = clock_of(2, {.read = 1, .write = 1});
  play(clock, 0, 2, 1);
  CHECK(clock.over(3).time == 3 + 2 + 1);
  CHECK(clock.over(7).time == 3 + 5 * 2 + 1);  // five reads one after another, then an update
  clock.begin_next_step(20);
  CHECK(clock.over(7).time == 0);
}

TEST_CASE("reads and writes slow each other down while both go on") {
  const auto at = [](double seconds) {
    Moment moment;
    moment.add(0, seconds);
    return moment;
  };
  DriveClock drives({.read = 0.5, .write = 0.75});
  const DriveClock::Ticket first = drives.add(true, at(0), 3), read = drives.add(false, at(1), 1),
                           second = drives.add(true, at(0.5), 1), late = drives.add(false, at(10), 1);
  CHECK(drives.times(read).start == 1);
  CHECK(drives.times(read).end.time == 3);         // 2 s at half the speed
  CHECK(drives.times(first).end.time == 3 + 0.5);  // 1 s alone, 1.5 of the 2 s beside the read, the rest alone
  CHECK(drives.times(second).start == 3.5);
  CHECK(drives.times(second).end.time == 4.5);
  CHECK(drives.times(late).end.time == 11);
  const DriveClock::Ticket before = drives.add(true, at(5), 1);
  CHECK(drives.times(before).end.time == 12);  // the time until 11 is simulated
  drives.move_origin(11);
  CHECK(drives.times(before).end.time == 1);
  CHECK(drives.times(late).end.time == 0);
}

TEST_CASE("a read after a write lets others pass until that is over") {
  DriveClock drives({.read = 1, .write = 1});
  const DriveClock::Ticket write = drives.add(true, {}, 5), late = drives.add(false, {}, 1, write);
  Moment asked;
  asked.add(0, 3);
  const DriveClock::Ticket early = drives.add(false, asked, 1), earlier = drives.add(false, {}, 1);
  CHECK(drives.times(late).start == 5);
  CHECK(drives.times(late).end.time == 6);
  CHECK(drives.times(early).start == 3);
  CHECK(drives.times(earlier).start == 0);
}

TEST_CASE("a transfer that is under way at the new origin of time has its rest left") {
  DriveClock drives({.read = 1, .write = 1});
  const DriveClock::Ticket write = drives.add(true, {}, 5), read = drives.add(false, {}, 4, write);
  drives.move_origin(7);
  CHECK(drives.times(write).end.time == 0);
  CHECK(drives.times(read).end.time == 2);
}

TEST_CASE("a postponed update is played when its end is asked for") {
  Event op;
  op.queue = Event::Queue::update;
  const std::vector<Event> events = {disk_event(false, 1), op, disk_event(true, 1)};
  const std::vector<double> seconds = {1, 2, 1};
  UpdateClock clock = clock_of(1, {.read = 1, .write = 1});
  for (int32_t unit = 0; unit < 2; ++unit) clock.postpone(unit, events, seconds);
  CHECK(clock.any());
  CHECK(clock.over(1).time == 4);
  CHECK(clock.over(0).time == 2);
  CHECK(clock.written(0).time == 3);
  CHECK(clock.over(5).time == 0);
}

TEST_CASE("ops at the start of an update's events are not its lane's") {
  Event copy, op;
  op.queue = Event::Queue::update;
  const std::vector<Event> events = {copy, disk_event(false, 1), op, disk_event(true, 1)};
  UpdateClock clock = clock_of(1, {.read = 1, .write = 1});
  clock.play(0, events, {100, 1, 2, 1}, nullptr);
  CHECK(clock.over(0).time == 2);
}

TEST_CASE("weights that wait for a write are read after state that is asked for before") {
  Event op;
  op.queue = Event::Queue::update;
  const std::vector<Event> events = {disk_event(false, 1), op, disk_event(true, 1)};
  const std::vector<double> seconds = {4, 1, 1};
  UpdateClock clock = clock_of(4, {.read = 1, .write = 1});
  for (int32_t unit = 0; unit < units; ++unit) clock.postpone(unit, events, seconds);
  CHECK(clock.written(3).time == 8);  // unit 0 is written from 1 to 2, unit 3 read until 6
  TimeSpan span;
  Moment asked;
  asked.add(0, 8);
  // The state of units 4, 5 and 6 was asked for at 3, 4 and 8.
  CHECK(clock.transfer(disk_event(false, 1), asked, 1, span).time == 6 + 3 * 4 + 1);
}

TEST_CASE("a fast disk hides behind the updates") {
  UpdateClock clock = clock_of(0.25);
  play(clock, 0, 0.25, 1);
  CHECK(clock.over(7).time == units);
  clock.begin_next_step(5);
  CHECK(clock.over(3).time == 0);
  CHECK(clock.over(7).time == 3);
}

TEST_CASE("gradients go to the host and weights return beside updates there, each way by itself") {
  Event op;
  op.queue = Event::Queue::update;
  const std::vector<Event> events = {host_event(true, 1), op, host_event(false, 1)};
  const auto play = [&](double to_host, double update, double to_device) {
    UpdateClock clock;
    Moment norm;
    norm.add(0, 10);
    clock.begin(norm);
    for (int32_t unit = 0; unit < units; ++unit) clock.play(unit, events, {to_host, update, to_device}, nullptr);
    return std::vector{clock.over(0).time, clock.over(units - 1).time};
  };
  CHECK(play(1, 1, 1) == std::vector<double>{13, 10 + units + 2});
  CHECK(play(2, 1, 1) == std::vector<double>{14, 10 + 2 * units + 2});
  CHECK(play(1, 3, 1) == std::vector<double>{15, 10 + 1 + 3 * units + 1});
  CHECK(play(1, 1, 2) == std::vector<double>{14, 10 + 2 + 2 * units});
}

}  // namespace test_update_clock
