# An echo server in Ruby with one thread per connection, and a client with several threads.
#
# usage: threads_echo.rb server PORT | client PORT CONNECTIONS ROUNDS
require 'socket'

def serve(port)
  listener = TCPServer.new('127.0.0.1', port)
  trap('TERM') { exit }
  loop do
    Thread.new(listener.accept) do |connection|
      while (line = connection.gets)
        connection.write(line)
      end
      connection.close
    end
  end
end

def load(port, connections, rounds)
  threads = Array.new(connections) do |number|
    Thread.new do
      TCPSocket.open('127.0.0.1', port) do |connection|
        rounds.times do |round|
          message = "#{number} #{round} " * (1 + round * 37 % 500) + "\n"
          connection.write(message)
          raise "connection #{number}, round #{round}: the answer differs" unless connection.gets == message
        end
      end
    end
  end
  threads.each(&:join)
  puts "ok #{connections * rounds} rounds"
end

role, *numbers = ARGV
role == 'server' ? serve(*numbers.map(&:to_i)) : load(*numbers.map(&:to_i))
