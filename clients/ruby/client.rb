#!/usr/bin/env ruby
# frozen_string_literal: true

# A producer and a worker in Ruby, with pg. See docs/reference/protocol.md for what each call does.
#
#     client.rb enqueue TASK ARGS QUEUE [KEY]    enqueues in one transaction with a row; prints the job's id
#     client.rb worker QUEUE                     runs jobs until TERM or INT
#
# PGQUEUE_DSN names the database, PGQUEUE_LEASE the lease in seconds (30).

require "json"
require "pg"
require "securerandom"

LEASE = Float(ENV.fetch("PGQUEUE_LEASE", "30"))

def connect = PG.connect(ENV.fetch("PGQUEUE_DSN"))

def enqueue(task, args, queue, key = nil)
  db = connect
  db.transaction do
    db.exec_params("insert into client_orders (note) values ($1)", [task])
    db.exec_params("select pgqueue.enqueue($1, $2::jsonb, queue => $3, key => $4)", [task, args, queue, key]).getvalue(0, 0)
  end
ensure
  db&.close
end

class Interrupted < StandardError; end

# The handlers. Each gets a connection and the job.
module Handlers
  def self.note(db, job)
    statement = "insert into client_notes (job_id, args) values ($1, $2) returning seconds"
    sleep(db.exec_params(statement, [job["id"], job["args"]]).getvalue(0, 0).to_f)
  end

  def self.fail(_db, _job) = raise("no such order")
end

class Worker
  End = Struct.new(:id, :reservation, :error)
  HELLO = "pgqueue.hello($1, array[$2], '{\"client\": \"ruby\"}')"

  def initialize(queue)
    @queue = queue
    @name = "ruby:#{Process.pid}:#{SecureRandom.hex(4)}"
    @stopping = false
    %w[TERM INT].each { |signal| trap(signal) { @stopping = true } }
  end

  def run
    @db = connect
    channel = ask("select #{HELLO}", @name, @queue).getvalue(0, 0)
    @db.exec("listen #{@db.quote_ident(channel)}")
    ended = nil
    polls = 0
    until @stopping
      job = exchange(1, ended)
      ended = job && attempt(job)
      polls = job ? 0 : polls + 1
      wait(polls) unless job
    end
    exchange(0, ended)
    ask("select pgqueue.bye($1)", @name)
    @db.close
  end

  private

  def ask(statement, *values) = @db.exec_params(statement, values)

  # Registered as idle, it polls four times in a second, and then blocks until it is notified or a job is due.
  def wait(polls)
    seconds = ask(<<~SQL, @name, @queue).getvalue(0, 0).to_f
      select least(extract(epoch from call_again_in), extract(epoch from next_due - now())),
        case when not registered then #{HELLO} end from pgqueue.idle($1, array[$2])
    SQL
    left = polls <= 4 ? 0.25 : [seconds, 0.01].max
    # In slices: a signal does not end the wait.
    left -= 0.25 until @stopping || left <= 0 || @db.wait_for_notify([left, 0.25].min)
  end

  # Reports how the last job ended, until that is stored, and claims max: one or none. Returns the job.
  def exchange(max, ended)
    bad, good = [ended].compact.partition(&:error)
    array = PG::TextEncoder::Array.new
    pairs = [good, bad].flat_map { |ends| [array.encode(ends.map(&:id)), array.encode(ends.map(&:reservation))] }
    errors = array.encode(bad.map { |each| JSON.generate(message: each.error) })
    loop do
      rows = ask(<<~SQL, @name, max, @queue, LEASE, *pairs, errors).to_h { |row| [row["outcome"], row] }
        select outcome, id, task, args, reservation from pgqueue.exchange(
          $1, $2, array[$3], lease => make_interval(secs => $4),
          completed => $5, completed_reservations => $6, failed => $7, failed_reservations => $8, errors => $9::jsonb[])
      SQL
      return rows["reserved"] unless rows["locked"]

      # Another session has its row: nothing was changed. A job that waited for it would lose its lease.
      release(rows["reserved"]) if rows["reserved"]
      max = 0
      sleep 0.1
    end
  end

  def release(job) = ask("select pgqueue.release($1, $2)", "{#{job["id"]}}", "{#{job["reservation"]}}")

  # Runs one job to its end in a thread, and extends its lease meanwhile, every third of it.
  def attempt(job)
    handler = Thread.new do
      Thread.current.report_on_exception = false
      own = connect
      raise "there is no task #{job["task"]}" unless Handlers.singleton_methods.include?(job["task"].to_sym)

      Handlers.public_send(job["task"], own, job)
      nil
    rescue Exception => error # also one that is no StandardError, such as NotImplementedError
      String.new(error.message, encoding: "UTF-8").scrub.delete("\0") # what jsonb can hold
    ensure
      own&.close
    end
    pair = ["{#{job["id"]}}", "{#{job["reservation"]}}"]
    until handler.join(LEASE / 3)
      rows = ask(<<~SQL, *pair, LEASE, @name).values
        select cancel_requested from pgqueue.extend($1, $2, make_interval(secs => $3)), pgqueue.beat($4)
      SQL
      next if rows == [["f"]]

      # No row: the lease is lost. True: a user asked to cancel; given back, the job ends as cancelled.
      handler.raise(Interrupted)
      handler.join rescue nil
      release(job)
      return
    end
    End.new(job["id"], job["reservation"], handler.value)
  end
end

command, *given = ARGV
command == "enqueue" ? puts(enqueue(*given)) : Worker.new(*given).run
