// Publishes numbers to topics, or consumes them, until the standard input ends. The same program as ../java.
//
//	publish URL PAUSE_MS KEYS TOPIC...   A topic number: acknowledged; E text: an error; S count: the end
//	consume URL SUBSCRIPTION TOPIC       R: subscribed; M nanoseconds key number: received, printed before its acknowledgement
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var out sync.Mutex

func show(format string, values ...any) {
	out.Lock()
	defer out.Unlock()
	fmt.Printf(format+"\n", values...)
}

func must(err error) {
	if err != nil {
		show("E %v", err)
		os.Exit(1)
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	must(err)
	return found
}

func main() {
	ended, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	words := os.Args[1:]
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: words[1], OperationTimeout: 60 * time.Second, KeepAliveInterval: 5 * time.Second,
	})
	must(err)
	if words[0] == "publish" {
		publish(ended, client, time.Duration(number(words[2]))*time.Millisecond, number(words[3]), words[4:])
	} else {
		consume(ended, client, words[2], words[3])
	}
	client.Close()
}

func publish(ended context.Context, client pulsar.Client, pause time.Duration, keys int, topics []string) {
	var producers []pulsar.Producer
	for at, topic := range topics {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, Name: fmt.Sprintf("load-%d", at), SendTimeout: -1, MaxPendingMessages: 100_000, DisableBatching: true,
		})
		must(err)
		producers = append(producers, producer)
	}
	var open sync.WaitGroup
	count := 0
	for ; ended.Err() == nil; count++ {
		for at, producer := range producers {
			topic, sent := at, count
			open.Add(1)
			message := &pulsar.ProducerMessage{Key: fmt.Sprintf("k%d", sent%keys), Payload: []byte(strconv.Itoa(sent))}
			producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err == nil {
					show("A %d %d", topic, sent)
				} else {
					show("E %d %d %v", topic, sent, err)
				}
				open.Done()
			})
		}
		time.Sleep(pause)
	}
	open.Wait()
	show("S %d", count)
}

func consume(ended context.Context, client pulsar.Client, subscription, topic string) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: pulsar.KeyShared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	must(err)
	show("R")
	for {
		message, err := consumer.Receive(ended)
		if err != nil {
			break
		}
		show("M %d %s %s", time.Now().UnixNano(), message.Key(), message.Payload())
		_ = consumer.AckID(message.ID())
	}
	consumer.Close()
}
